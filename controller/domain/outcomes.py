"""How an attempt ends, and what part it had in a fault of its device."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from cotenant.controller.domain.owned import UNTOLD, OwnersText

Outcome = Literal["finished", "user-failed", "infra-failed", "stopped", "never-started"]
"""`stopped`: it left on request, its state (if any was asked for) durable."""


GpuFaultRole = Literal["", "culprit", "suspect", "hit", "device"]
"""culprit: it caused the fault. suspect: it did, or one that shared the device; which is unknown. hit:
another did. device: the device failed by itself."""


SPLIT_REFUSED: Final = "cotenant.gradaccum.Refused: "
"""The words with which an attempt ends before a step whose batch in parts would be wrong."""
RefusedChange = Literal["", "split", "resume"]


HOST_LIMIT_RULES: Final = ("memory", "own memory limit", "a process over its memory limit")
"""Supervisors' rules, by name."""

CUDA_NOT_STARTED: Final = "CUDA did not start"
CUDA_RULES: Final = (CUDA_NOT_STARTED, "GPU fault", "GPU unavailable")


class ExitVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended on one host, and why, as its supervisor judges it."""

    outcome: Outcome
    exit_code: int | None = None
    detail: OwnersText = ""
    """One line for the job's owner: the exit code's meaning, the signal, and what the job printed of it."""
    ours: str = ""
    """The same for everybody, without a word that the job or its command has; empty: nothing is known but the
    exit code (all of a record that is older than this field)."""
    workdir_missing: bool = False
    out_of_memory: bool = False
    """It ended because it got no more memory on its device."""
    cuda_fault: bool = False
    """Its own words are those of a fatal error on the device: under MPS that ends all clients."""
    host_fault: bool = False
    """The host's own check failed, before anything of the job's had run: no file of ours could be written, no
    lock be taken. Never what a job's user may have caused alone."""
    rule: str = ""
    """Name of the rule that concludes the outcome from how the job's processes ended; empty: the cause was
    seen, or nothing of the job's ran."""
    went_otherwise: bool = False
    """It was resumed, and showed that it was not the run that was left."""

    @property
    def is_over_host_limit(self) -> bool:
        """It, or a process of it, was ended for using more main memory than its limit."""
        return self.rule in HOST_LIMIT_RULES

    @property
    def asks_cuda(self) -> bool:
        """Its words may be the device's fault, which a try of CUDA there tells."""
        return self.rule in CUDA_RULES

    @property
    def said(self) -> tuple[str, str]:
        """What its owner reads, and what everybody does."""
        code = "" if self.exit_code is None else f"exit code {self.exit_code}"
        return self.detail or self.outcome, self.ours or code or UNTOLD

    @property
    def refusal(self) -> RefusedChange:
        """What the scheduler had done to the script that would have changed its result. The scheduler wanted
        it, so that is no failure of the program's."""
        return "resume" if self.went_otherwise else "split" if SPLIT_REFUSED in self.detail else ""


SAME_TIME_S: Final = 10.0
SAME_TIME_SHARE: Final = 0.1


class FailedEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an attempt that counted as a failure of the infrastructure, to compare the next one with."""

    rule: str
    exit_code: int | None
    ran_s: float
    """Between the start of the attempt's processes and the last host's word of their end."""

    def is_repeated_by(self, later: FailedEnd) -> bool:
        """Whether a later attempt ended in the same way, after about the same time: a tenth, or ten seconds,
        apart at most. Hosts do not fail by the clock."""
        apart_s = max(SAME_TIME_S, SAME_TIME_SHARE * max(self.ran_s, later.ran_s))
        is_same_way = bool(self.rule) and (self.rule, self.exit_code) == (later.rule, later.exit_code)
        return is_same_way and abs(self.ran_s - later.ran_s) <= apart_s
