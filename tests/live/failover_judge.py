"""What must hold after a storm over two controllers, out of what each party wrote for itself. Pure.

Rule: no judgement believes a controller. The database's own trigger wrote who put each entry in, the client
what it was told and when (by one monotonic clock), and the jobs what they did.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple


class Reign(NamedTuple):
    """A term, and a connection that held it. A leader that lost its connection makes another in its term."""

    term: int
    backend: int


class Written(NamedTuple):
    """An entry of the journal, as the database's trigger saw it come."""

    seq: int
    term: int
    """That of the leader in the table at that moment."""
    backend: int
    """The connection that wrote it."""


class Arrived(NamedTuple):
    """A submission in the journal."""

    seq: int
    key: str
    job: str


class Asked(NamedTuple):
    """A question that was answered: it was asked, and answered, at these times."""

    began_s: float
    ended_s: float


class Submitted(NamedTuple):
    asked: Asked
    key: str
    job: str


class Listed(NamedTuple):
    asked: Asked
    jobs: frozenset[str]


class Stretch(NamedTuple):
    """One process of a job, from its start to its last sign of life, and the device that it held."""

    job: str
    attempt: int
    device: str
    began_s: float
    ended_s: float


def judge_writers(entries: Sequence[Written], reigns: Sequence[Reign]) -> Iterator[str]:
    """Each entry was written by a connection of the term that was then the last, and none is missing."""
    held = set(reigns)
    for before, after in pairwise(sorted(entries)):
        if after.seq != before.seq + 1:
            yield f"entries {before.seq + 1} to {after.seq - 1} are missing"
        if after.term < before.term:
            yield f"entry {after.seq} is of term {after.term}, entry {before.seq} before it of {before.term}"
    for entry in entries:
        if Reign(entry.term, entry.backend) not in held:
            yield f"entry {entry.seq} came in term {entry.term} from a connection that did not lead in it"


def judge_signs(signs: Sequence[Reign], reigns: Sequence[Reign]) -> Iterator[str]:
    """Whoever committed a sign of life in a term led in it."""
    for sign in set(signs) - set(reigns):
        yield f"a connection that did not lead in it committed in term {sign.term}"


def judge_submissions(acknowledged: Sequence[Submitted], arrived: Sequence[Arrived]) -> Iterator[str]:
    """What was acknowledged is in the journal, once, as the job that the client was told; the clients could
    have seen its order of entries."""
    by_key: dict[str, list[Arrived]] = defaultdict(list)
    for entry in arrived:
        by_key[entry.key].append(entry)
    for key, found in by_key.items():
        if len(found) > 1:
            yield f"submission {key} arrived {len(found)} times: {[each.job for each in found]}"
    seq_of: dict[str, int] = {}
    for each in acknowledged:
        same = [entry for entry in by_key[each.key] if entry.job == each.job]
        if not same:
            yield f"acknowledged job {each.job} ({each.key}) is lost: {by_key[each.key] or 'never arrived'}"
        else:
            seq_of[each.key] = same[0].seq
    yield from judge_order([(each.asked, seq_of[each.key]) for each in acknowledged if each.key in seq_of])


def judge_order(asked: Sequence[tuple[Asked, int]]) -> Iterator[str]:
    """What was answered before another question was asked has the smaller number."""
    ended = sorted(asked, key=lambda each: each[0].ended_s)
    least, next_one = 0, 0
    for question, seq in sorted(asked, key=lambda each: each[0].began_s):
        while next_one < len(ended) and ended[next_one][0].ended_s < question.began_s:
            least = max(least, ended[next_one][1])
            next_one += 1
        if seq < least:
            yield f"an answer explained by entry {seq} was asked for after one of entry {least} had come"


def judge_lists(
    listed: Sequence[Listed], acknowledged: Sequence[Submitted], arrived: Sequence[Arrived]
) -> Iterator[str]:
    """Each list is the journal's submissions up to one entry: never a gap, never older than what was answered
    before it was asked for. With the acknowledged submissions that is one order of all answers."""
    order = [each.job for each in sorted(arrived)]
    place = {job: number for number, job in enumerate(order, 1)}
    points = []
    for each in listed:
        unknown = each.jobs - place.keys()
        if unknown:
            yield f"a list has jobs that never arrived: {sorted(unknown)}"
            continue
        if each.jobs != set(order[: len(each.jobs)]):
            gap = sorted(set(order[: len(each.jobs)]) - each.jobs)
            yield f"a list of {len(each.jobs)} jobs has a gap: {gap}"
            continue
        points.append((each.asked, len(each.jobs)))
    points += [(each.asked, place[each.job]) for each in acknowledged if each.job in place]
    yield from judge_order(points)


def judge_devices(stretches: Sequence[Stretch]) -> Iterator[str]:
    """No two processes of exclusive jobs were on one device at once, nor two attempts of a job anywhere."""
    groups: dict[str, list[Stretch]] = defaultdict(list)
    for each in stretches:
        groups[f"device {each.device}"].append(each)
        groups[f"job {each.job}"].append(each)
    for name, group in groups.items():
        last: Stretch | None = None
        for each in sorted(group, key=lambda one: one.began_s):
            if last is not None and each.began_s < last.ended_s:
                yield f"{name}: {last} and {each} overlap"
            if last is None or each.ended_s > last.ended_s:
                last = each


def judge_attempts(
    ran: Mapping[str, Sequence[int]], done: Sequence[str], finished: Mapping[str, int]
) -> Iterator[str]:
    """No attempt of a job was started twice, in no other order, and each job that is done finished once.
    `ran`: attempts in order of their start; `finished`: how often a process of the job came to its end."""
    for job, attempts in ran.items():
        twice = [number for number, count in Counter(attempts).items() if count > 1]
        if twice:
            yield f"job {job}: attempts {twice} were started more than once"
        if list(attempts) != sorted(attempts):
            yield f"job {job}: attempts were started in the order {list(attempts)}"
    for job in done:
        if finished.get(job, 0) < 1:
            yield f"job {job} is done, and no process of it came to its end"
