"""How a claim is judged from the facts of the first nine minutes. The claims are in `claims.py`.

Rule: a claim is judged from its facts alone, whatever became of its question: a question that was cut off has
answered what it noted before. A fact that is not there makes its claim "not measured". Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from hwtests.first.questions import Asked

Word = Literal["holds", "refuted", "answer", "not measured"]
Facts = Mapping[str, Any]
Judged = tuple[bool | None, str]
"""Whether the claim holds (None: it asks for a value), and what was seen."""
LIMIT_MIB: Final = 2048
HASH: Final = re.compile(r"[0-9a-f]{64}")
NOT_ASKED: Final = "[PermissionError"
"""How the note of a program begins that this account may not start: it says nothing about the daemon."""
TOO_SMALL: Final = "46"
ABSENT: Final = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What a judge meets where a fact was not noted, or is of another kind than on a machine that works."""


class Claim(NamedTuple):
    """A row of the page."""

    question: str
    decides: str
    says: str
    judge: Callable[[Facts], Judged]
    if_so: str
    if_not: str = ""


class Verdict(NamedTuple):
    word: Word
    seen: str
    todo: str


def judge(claim: Claim, asked: Mapping[str, Asked]) -> Verdict:
    """The verdict on a claim; where a fact is missing, why its question did not bring it."""
    one = asked.get(claim.question)
    if one is None:
        return Verdict("not measured", "not reached", "start it again with the same folder")
    if reason := one.facts.get("not measured"):
        return Verdict("not measured", str(reason), "")
    try:
        holds, seen = claim.judge(one.facts)
    except ABSENT:
        if refuted := one.facts.get("refuted"):
            return Verdict("refuted", str(refuted), claim.if_not)
        refusal = next((str(why) for name, why in one.facts.items() if name.startswith("no ")), "")
        return Verdict("not measured", one.why or refusal or f"{one.state}: the fact was not noted", "")
    if holds is None:
        return Verdict("answer", seen, claim.if_so)
    return Verdict("holds", seen, claim.if_so) if holds else Verdict("refuted", seen, claim.if_not)


def tell(client: Facts) -> str:
    """How a CUDA program ended."""
    return str(client.get("error") or ("opens the GPU" if client.get("opened") else "no word"))


def pick(facts: Facts, start: str) -> Any:
    """The first fact whose name starts so. Raises KeyError: there is none."""
    for name, value in facts.items():
        if name.startswith(start):
            return value
    raise KeyError(start)


def judge_flag(name: str) -> Callable[[Facts], Judged]:
    return lambda facts: (bool(facts[name]), "yes" if facts[name] else "no")


def show(*names: str) -> Callable[[Facts], Judged]:
    """The values of those that were noted; at least one must be."""

    def judge(facts: Facts) -> Judged:
        there = {name: facts[name] for name in names if name in facts}
        if not there:
            raise KeyError(names)
        return None, "; ".join(f"{name}: {value}" for name, value in there.items())

    return judge


def judge_context(facts: Facts) -> Judged:
    said = facts["context"]
    return None, f"{said['context_s']:.2f} s, {facts['MiB of a context']} MiB"


def judge_side_by_side(facts: Facts) -> Judged:
    alone, (one, two) = facts["kernels a second alone"], facts["kernels a second of two"]
    return one + two > 1.5 * alone, f"{one:g} and {two:g} kernels a second, {alone:g} alone"


def judge_owners(facts: Facts) -> Judged:
    clients, servers = (
        facts["pids of ours"]["clients"],
        [int(each) for each in facts["pids of ours"]["servers"]],
    )
    letters = {each["pid"]: each["letters"] for each in facts["processes by NVML"]}
    found = [[letters.get(pid, "-") for pid in pids] for pids in (clients, servers)]
    return all(pid in letters for pid in clients), f"clients {found[0]}, servers {found[1]}"


def judge_limit(name: str) -> Callable[[Facts], Judged]:
    """Whether a limit of 2048 MiB is kept, by what could be taken."""

    def judge(facts: Facts) -> Judged:
        said = facts[name]
        if "held_mib" not in said:
            return False, tell(said)
        seen = (
            f"{said['held_mib']} MiB taken, error {said['refused']}; {said.get('total_mib')} MiB shown in all"
        )
        return said["held_mib"] <= LIMIT_MIB and said["refused"] == 2, seen

    return judge


def judge_floor(facts: Facts) -> Judged:
    sizes = [name for name in facts if name.endswith(" MiB") and name[0].isdigit()]
    if not sizes:
        raise KeyError("sizes")
    said = {
        name: f"{facts[name]['held_mib']} MiB taken" if "held_mib" in facts[name] else tell(facts[name])
        for name in sizes
    }
    said |= {name: tell(facts[name]) for name in facts if name.endswith(" %") and name != "no limit"}
    return None, "; ".join(f"{name}: {text}" for name, text in said.items())


def judge_no_46(facts: Facts) -> Judged:
    codes = {name: str(each.get("code", "")) for name, each in facts.items() if isinstance(each, dict)}
    hit = [name for name, code in codes.items() if code == TOO_SMALL]
    if not codes:
        raise KeyError("limits")
    return not hit, f"error 46 at {', '.join(hit)}" if hit else "no error 46 at any limit"


def judge_neighbour(how: str) -> Callable[[Facts], Judged]:
    def judge(facts: Facts) -> Judged:
        rate = facts[f"{how}: the neighbour after, kernels a second"]
        met = facts.get(f"{how}: the neighbour meets", "")
        return rate > 0 and not met, met or f"{rate:g} kernels a second after"

    return judge


def judge_back(facts: Facts) -> Judged:
    names = [f"{how}: memory is back after, s" for how in ("terminate_client", "SIGKILL")]
    times = [facts[name] for name in names if name in facts]
    if not times:
        raise KeyError("times")
    said = ", ".join("not in 5 s" if each is None else f"{each * 1000:.0f} ms" for each in times)
    return all(each is not None for each in times), said


def judge_others_rule(facts: Facts) -> Judged:
    set_to = {name: text for name, text in facts.items() if name.startswith("open folder: uid")}
    if not set_to:
        raise KeyError("settings")
    percentage = next((str(text) for name, text in set_to.items() if "get_default_active" in name), NOT_ASKED)
    if percentage.startswith(NOT_ASKED):
        raise ValueError(percentage)
    seen = "; ".join(f"{name.partition(' says ')[2]}: {text}" for name, text in set_to.items())
    return percentage.startswith("10.0"), seen


def judge_own_folder(facts: Facts) -> Judged:
    said = pick(facts, "own folder: client")
    return bool(said.get("opened")), tell(said)


def judge_shut_out(facts: Facts) -> Judged:
    said = str(pick(facts, "own folder: uid"))
    if said.startswith(NOT_ASKED):
        raise ValueError(said)
    return "10.0" not in said, said


def judge_drawn_in(facts: Facts) -> Judged:
    names = ("who never asked", "who never asked, as another uid")
    there = {name: facts[name] for name in names if name in facts}
    drawn = [said["is client"] or said.get("code") == "waits" for said in there.values()]
    if not there:
        raise KeyError("nobody")
    return any(drawn), "; ".join(
        f"{name}: {tell(said)}, client: {said['is client']}" for name, said in there.items()
    )


def judge_fence(facts: Facts) -> Judged:
    there = {name: facts[name] for name in ("fenced", "fenced, as another uid") if name in facts}
    if not there:
        raise KeyError("nobody")
    is_out = all(said.get("opened") and not said["is client"] for said in there.values())
    return is_out, "; ".join(
        f"{name}: {tell(said)}, client: {said['is client']}" for name, said in there.items()
    )


def judge_unknown_first(facts: Facts) -> Judged:
    said = facts["unknown first: a client"]
    last = facts.get("unknown last: a client", {})
    plain = facts["unknown first: a plain program"]
    seen = f"first: client {tell(said)}, plain program {tell(plain)}; last: client {tell(last)}"
    return not said.get("opened"), seen


def judge_outlives(facts: Facts) -> Judged:
    rate = facts["the client after, kernels a second"]
    return (
        rate > 0,
        f"{rate:g} kernels a second, meets {facts['the client meets']}; {facts.get('asked after its death')}",
    )


def judge_share(facts: Facts) -> Judged:
    given = [facts[f"environment of {name}"] for name in ("long", "short")]
    ways = facts["shares by"]
    is_mps = all("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" in each for each in given) and any(
        way.startswith("mps") for way in ways
    )
    return is_mps and facts["on one device"], f"{'; '.join(ways)}; first job: {given[0]}"


def judge_resume(facts: Facts) -> Judged:
    attempts = facts["attempts"]
    return len(attempts) == 2 and "result" in facts, f"{attempts}, back after {facts['back after, s']} s"


def judge_bits(facts: Facts) -> Judged:
    runs = {name: value for name, value in facts.items() if name.startswith(("whole", "with "))}
    others = {name: value for name, value in runs.items() if HASH.fullmatch(value)}
    equal = {name: value == facts["resumed"] for name, value in others.items()}
    same = [name for name, is_equal in equal.items() if is_equal]
    apart = ", ".join(name for name in equal if name not in same) or "none"
    wanted = next((name for name in runs if name.startswith("with ")), "whole device")
    return equal[
        wanted
    ], f"after {facts['steps']} steps equal to: {', '.join(same) or 'none'}; not equal to: {apart}"


def speed(facts: Facts, name: str, alone: Facts) -> float:
    """The speeds of two loads together, each in that alone, added."""
    return float(
        sum(
            facts[f"{name}, rates"][kind] / alone[f"alone: {kind}, rates"][kind] for kind in ("matmul", "d2d")
        )
    )


def judge_turns(facts: Facts) -> Judged:
    return None, f"speed together {speed(facts, 'both by turns', facts):.2f} by turns"


def judge_together(facts: Facts) -> Judged:
    turns, mps = facts["speed together by turns"], facts["speed together under MPS"]
    return mps > turns, f"speed together {mps:.2f} under MPS, {turns:.2f} by turns"


def judge_gpm(facts: Facts) -> Judged:
    said = facts["alone: matmul, counters"]["gpm"]
    return isinstance(said, dict) and "SMACT" in said, str(said)


def judge_energy(facts: Facts) -> Judged:
    before, after = facts["alone: matmul, energy counter"]
    return after > before, f"{(after - before) / 1000:.0f} J in the window"


def judge_allocators(facts: Facts) -> Judged:
    limit = facts["limit, MiB"]
    found = {name: value for name, value in facts.items() if name != "limit, MiB"}
    if not found:
        raise KeyError("allocators")
    keeps = {
        name: isinstance(each, dict) and bool(each["error"]) and each["held_mib"] <= limit
        for name, each in found.items()
    }
    said = {
        name: f"{each['held_mib']} MiB" if isinstance(each, dict) else str(each)
        for name, each in found.items()
    }
    return all(keeps.values()), "; ".join(f"{name}: {text}" for name, text in said.items())


def judge_warm(facts: Facts) -> Judged:
    starts = [value for name, value in facts.items() if name.startswith("start ")]
    warm = [each for each in starts if each["launch"] == "warm"]
    if not warm:
        raise ValueError("none was warm")
    hashes = {each["sha256"] for each in starts}
    times = ", ".join(f"{each['launch']} {each.get('to the first step, s')} s" for each in starts)
    return len(hashes) == 1, times


def judge_half(facts: Facts) -> Judged:
    whole, half = facts["100 %"], facts["50 %"]
    counts = f"{half['multiprocessors']} of {whole['multiprocessors']} multiprocessors shown"
    return whole["sha256"] == half["sha256"], counts


def judge_torch_floor(facts: Facts) -> Judged:
    said = {name: each.get("error", "trains") for name, each in facts.items() if name.endswith(" MiB")}
    if not said:
        raise KeyError("limits")
    return None, "; ".join(f"{name}: {text}" for name, text in said.items())
