"""The questions of the first nine minutes, in the order in which they are asked. Pure.

Rule: no question has more than forty seconds, and all together have nine minutes, so whoever stops the script
after any question has the most telling answers that the time could buy. A question says what it needs; what
an earlier one refused is not asked for again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

Need = Literal["gpu", "mps", "torch", "product", "root", "faults"]

QUESTION_S_MAX: Final = 40.0
TOTAL_S_MAX: Final = 540.0


class Question(NamedTuple):
    """One row of the table."""

    name: str
    asks: str
    decides: str
    """The findings and claims that the answer decides."""
    limit_s: float
    needs: tuple[Need, ...] = ()


QUESTIONS: Final = (
    Question("machine", "What is this machine?", "what can be asked here at all", 15),
    Question("install", "Does the kit install beside this torch?", "every question to the product", 25),
    Question("cuda", "Does CUDA make a context, and does NVML show who has it?",
             "the CUDA probe (finding 4), the owner table, memory margins", 15, ("gpu",)),
    Question("mps-up", "Does a private MPS daemon take clients in, and what does it say of them?",
             "parser of answers, owner table, which GPUs a server opens (finding 10)", 25, ("gpu", "mps")),
    Question("mps-limits", "Which spelling of a memory limit holds?",
             "the product's own string, doubled numbers", 15, ("gpu", "mps")),
    Question("mps-floor", "How small may a memory limit or a percentage be?",
             "a floor for limits, error 46 (finding 12)", 20, ("gpu", "mps")),
    Question("mps-terminate", "Do terminate_client and SIGKILL spare the neighbour, and when is memory back?",
             "order of stopping, patience of 60 s", 20, ("gpu", "mps")),
    Question("mps-uid", "What may another account do with root's daemon, and with a folder of its own?",
             "folders 0700 of the user (findings 3 and 7)", 20, ("gpu", "mps", "root")),
    Question("mps-stray", "Does a daemon in the default folder draw in strangers, and does the fence hold?",
             "the fence (finding 2)", 20, ("gpu", "mps")),
    Question("mps-devices", "What does an unknown GPU at the front of a daemon's list do to those behind it?",
             "the list of devices (findings 1 and 11)", 15, ("gpu", "mps")),
    Question("mps-restart", "What do clients notice of a control daemon that dies, and of a second daemon?",
             "remedies for a lost daemon (findings 1 and 6)", 20, ("gpu", "mps")),
    Question("doctor", "What does `cotenant doctor` say?", "what users read first", 10, ("product",)),
    Question("share", "Do two jobs of `cotenant up` train on this GPU as clients of its MPS daemon?",
             "the claim on the front page", 40, ("gpu", "torch", "product")),
    Question("resume", "Is a job preempted and resumed in the product?", "the claim on the front page", 40,
             ("gpu", "torch", "product")),
    Question("bits", "Has the resumed job the bits of one that nobody disturbed?",
             "the word exact", 30, ("gpu", "torch", "product")),
    Question("turns", "What do two loads get by turns, and what do the counters show?",
             "whether sharing pays, indicators, energy", 40, ("gpu", "torch", "product")),
    Question("together", "What do the same two loads get under MPS?", "whether sharing pays", 30,
             ("gpu", "mps", "torch", "product")),
    Question("torch-limit", "Does torch keep to its part under each allocator?", "test_torch_limits.py", 30,
             ("gpu", "torch", "product")),
    Question("warm", "Does a forked rank open the GPU?", "warm starts with CUDA", 40,
             ("gpu", "torch", "product")),
    Question("torch-mps", "Has torch the same bits on half of the multiprocessors? What limit is too small?",
             "the word exact (finding 16), the floor for torch (finding 12)", 30,
             ("gpu", "mps", "torch", "product")),
    Question("fault", "Whom does an illegal address hit, and how soon is the GPU back?",
             "limits of gpu_faults, the exit table", 40, ("gpu", "mps", "faults")),
)  # fmt: skip
BY_NAME: Final[Mapping[str, Question]] = {each.name: each for each in QUESTIONS}

State = Literal["over", "cut off", "failed", "not asked"]


class Asked(NamedTuple):
    """What became of one question."""

    state: State
    why: str = ""
    """For `failed` and `not asked`, in words."""
    took_s: float = 0.0
    facts: Mapping[str, object] = {}
    """By name, as they were noted; what was noted before a question was cut off is there as well."""


def refusals(asked: Mapping[str, Asked]) -> dict[str, str]:
    """What this machine lacks, by need, with the reason: each question may note `no NEED`."""
    found: dict[str, str] = {}
    for each in asked.values():
        for name, why in each.facts.items():
            if name.startswith("no "):
                found.setdefault(name.removeprefix("no "), str(why))
    install = asked.get("install")
    if install is not None and install.state in ("failed", "cut off"):
        found.setdefault("product", f"the kit did not install: {install.why or install.state}")
    return found


def why_not(question: Question, refused: Mapping[str, str]) -> str:
    """Why a question need not be asked; empty if it is."""
    return next((f"{need}: {refused[need]}" for need in question.needs if need in refused), "")
