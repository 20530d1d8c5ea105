"""Whether a job hangs: because it makes no optimizer steps, or never makes the first one. Pure.

Rule: a silence alone is no proof, since a job may evaluate, save or load data for as long as it likes. It
hangs if it has made no step for `threshold_s` AND for at least half of it no training thread of the whole
gang was seen to move. Use of the processor or the GPU cannot tell: ranks that wait in an NCCL collective
keep both busy. So the supervisor asks the ranks for the hash of their training thread's stack (`look`,
`standing`), which stays the same while a thread waits. It does not watch ranks that do not understand the
question.

    threshold   max(floor, multiple x usual step time) x slowdown while sharing; or what `--watchdog` declared
    armed       after a few measured steps; a declared threshold counts from the first step on
    at half     looks begin
    at the end  every process writes its stacks; a few seconds later, still no sign of life: it hangs

What is not counted: the time of a save (half an hour at most), of a stop or a lost lease (they have limits of
their own), a process that somebody has stopped, and time in which we did not run ourselves.

In a gang over several hosts only the first host's supervisor judges, by what the others say of their ranks: a
rank that waits for another host's evaluation stands still as well.

At its start a job is judged once, at the deadline for its first step. Without the library there is no first
step to hear of; then processor time used, or output, in the second half of the time counts as life, and the
job as running: a script that uses torch may never make an optimizer step.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final, Literal

from cotenant.agent.ipc.records import WatchRule
from cotenant.agent.supervisor.core.edge import Sampled

STEPS_MIN: Final = 5
"""Reports of measured steps before their median means something."""
SHARED_SLOWDOWN: Final = 2.0
"""Expected at most of two jobs that take turns; what was measured while sharing has it in it already, and
then the watchdog is only more patient."""
SAVE_PATIENCE_S: Final = 1800.0
LOOKS: Final = 20
"""How many looks fit into a threshold."""
LOOKS_MIN: Final = 5
"""Still places seen in a row before anybody is said to hang."""
LOOK_PERIOD_S_MAX: Final = 15.0
GAP_S_MIN: Final = 3.0
"""What lies between two alarms of a busy host; a longer gap counts as this much."""
STACKS_S: Final = 5.0
"""For the stacks to get into the log."""
ALIVE_DUTY: Final = 0.05
"""Of a core, by a gang with a rank that does not answer: it may be busy in one long call."""

WatchdogStep = Literal["look", "dump", "hang"]
START_DUTY: Final = 0.05
"""A job without the library counts as started if it has used this much of a core lately."""


class Watchdog:
    """The watchdog of one attempt on one host. Idle without a rule."""

    def __init__(self, rule: WatchRule | None, *, judges: bool) -> None:
        """Sets up the watchdog before any step. `judges`: this is the gang's first host."""
        self._rule = rule
        self._judges = judges
        self._clock_s: float | None = None
        self._step = -1
        self._silent_s = inf
        """Since the last step, as counted; infinite before the first one."""
        self._still_s = 0.0
        """Since a rank here was last seen to move."""
        self._looks = 0
        """In a row in which nobody was seen to move."""
        self._number = 0
        self._look_s = 0.0
        """Counted silence at which to look next."""
        self._places: dict[int, int] = {}
        self._answered: set[int] = set()
        self._saving_s: float | None = None
        self._cpu_s: float | None = None
        self._looked_cpu_s: tuple[float, float] | None = None
        self._dumped_s: float | None = None
        self._is_armed = False
        self._is_over = False

    @property
    def silent_s(self) -> float:
        """How long no step was made, as counted; 0 if none ever was."""
        return 0.0 if self._silent_s == inf else self._silent_s

    @property
    def still_s(self) -> float | None:
        """The seconds that other hosts should know: how long nobody here has moved. None: not looked at."""
        if self._silent_s == inf or self._looks < LOOKS_MIN:
            return None
        return self._still_s

    @property
    def look(self) -> int:
        """The number of the present look."""
        return self._number

    @property
    def next_alarm_s(self) -> float:
        if not self._is_armed or self._is_over or self._clock_s is None:
            return inf  # Nothing changes without an event.
        return self._clock_s + self._period_s

    @property
    def _period_s(self) -> float:
        assert self._rule is not None
        return max(0.05, min(LOOK_PERIOD_S_MAX, self._rule.floor_s / LOOKS))

    # --- Signs of life ------------------------------------------------------------------------------

    def note_step(self, step: int) -> None:
        if step > self._step:
            self._step = step
            self._silent_s = 0.0
            self._saving_s = None
            self._note_move()

    def saves(self, now_s: float) -> None:
        if self._saving_s is None:
            self._saving_s = now_s

    def note_save(self) -> None:
        self._saving_s = None

    def stands(self, rank: int, look: int, place: int) -> None:
        if look == self._number:
            self._answered.add(rank)
        if self._places.get(rank) not in (None, place):
            self._note_move()
        self._places[rank] = place

    def used(self, cpu_s: float) -> None:
        """Processor time of all processes together, since the start."""
        self._cpu_s = cpu_s

    def _note_move(self) -> None:
        self._still_s, self._looks, self._dumped_s = 0.0, 0, None

    # --- Time ---------------------------------------------------------------------------------------

    def advance(
        self,
        now_s: float,
        *,
        ranks: frozenset[int],
        step_s: float | None,
        steps: int,
        is_suspended: bool,
        is_alone: bool,
        far_still_s: Mapping[str, float | None],
    ) -> list[WatchdogStep]:
        """Lets time pass for the watchdog.

        ranks: those of this host that answer looks; empty if one does not. step_s, steps: the usual step
        time, and how many reports it is from. is_suspended: time does not count now. far_still_s: by other
        host, how long none of its ranks has moved; None = it has not said so lately.
        """
        if self._rule is None or self._is_over:
            return []
        passed_s = 0.0 if self._clock_s is None else now_s - self._clock_s
        self._clock_s = now_s
        threshold_s = self._threshold_s(step_s, steps, is_alone)
        self._is_armed = bool(ranks) and threshold_s is not None and self._silent_s != inf
        saving = self._saving_s is not None and now_s < self._saving_s + SAVE_PATIENCE_S
        if not ranks or threshold_s is None or is_suspended or saving or self._silent_s == inf:
            if self._silent_s != inf:
                self._silent_s = self._look_s = 0.0
            self._note_move()
            return []
        # Longer than we wanted to wait: nobody ran, or nobody listened.
        passed_s = min(passed_s, max(2 * self._period_s, GAP_S_MIN))
        self._silent_s += passed_s
        self._still_s += passed_s
        if self._silent_s < threshold_s / 2:
            self._look_s = threshold_s / 2
            return []
        words: list[WatchdogStep] = self._look(ranks, now_s, threshold_s)
        return words + self._judge(now_s, threshold_s, far_still_s)

    def _threshold_s(self, step_s: float | None, steps: int, is_alone: bool) -> float | None:
        """Returns how many seconds of silence are suspicious. None: not armed."""
        rule = self._rule
        assert rule is not None
        slowdown = 1.0 if is_alone else SHARED_SLOWDOWN
        if rule.multiple <= 0:
            return rule.floor_s * slowdown
        if step_s is None or steps < STEPS_MIN:
            return None
        return max(rule.floor_s, rule.multiple * step_s) * slowdown

    def _look(self, ranks: frozenset[int], now_s: float, threshold_s: float) -> list[WatchdogStep]:
        """Ask again where the ranks are; what has come of the question before counts now."""
        if self._silent_s < self._look_s:
            return []
        if self._number and self._look_s > threshold_s / 2:
            if not ranks <= self._answered and self._is_busy(now_s):
                self._note_move()
            else:
                self._looks += 1
        self._look_s = self._silent_s + threshold_s / LOOKS
        self._looked_cpu_s = None if self._cpu_s is None else (now_s, self._cpu_s)
        self._number += 1
        self._answered.clear()
        return ["look"]

    def _is_busy(self, now_s: float) -> bool:
        """Whether the processes have used a processor since the look before; not known counts as yes."""
        if self._looked_cpu_s is None or self._cpu_s is None:
            return True
        then_s, cpu_s = self._looked_cpu_s
        return self._cpu_s - cpu_s >= ALIVE_DUTY * (now_s - then_s)

    def _judge(
        self, now_s: float, threshold_s: float, far_still_s: Mapping[str, float | None]
    ) -> list[WatchdogStep]:
        if self._silent_s < threshold_s or self._looks < LOOKS_MIN or self._still_s < threshold_s / 2:
            return []
        if self._dumped_s is None:
            self._dumped_s = now_s
            return ["dump"]
        far_is_still = all(still is not None and still >= threshold_s / 2 for still in far_still_s.values())
        if not self._judges or not far_is_still or now_s < self._dumped_s + STACKS_S:
            return []
        self._is_over = True
        return ["hang"]


class StartLimit:
    def __init__(self, deadline_s: float, now_s: float) -> None:
        self._allowed_s = deadline_s
        self._half_way: Sampled | None = None
        self._sample = Sampled()
        self.is_judged = False
        self.started_s = now_s

    def note_sample(self, sample: Sampled, now_s: float) -> None:
        self._sample = sample
        if self._half_way is None and now_s >= self.started_s + self._allowed_s / 2:
            self._half_way = sample

    def next_alarm_s(self, *, has_stepped: bool) -> float:
        return inf if self.is_judged or has_stepped else self.started_s + self._allowed_s

    def hangs(self, now_s: float, *, has_stepped: bool, has_said_hello: bool) -> bool:
        if now_s < self.next_alarm_s(has_stepped=has_stepped):
            return False
        self.is_judged = True
        half = self._half_way
        if half is None or has_said_hello:
            return True
        used_s = self._sample.cpu_s - half.cpu_s
        is_alive = used_s >= START_DUTY * self._allowed_s / 2 or self._sample.output_bytes > half.output_bytes
        return not is_alive
