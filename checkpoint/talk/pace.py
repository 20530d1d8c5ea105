"""When this process may train: it waits between micro-batches, so that a co-tenant on its device is not
slowed beyond its bound. And when its own steps end, for co-tenants that wait for them.

The supervisor keeps two files beside its socket, of little-endian doubles (times are CLOCK_MONOTONIC):

    pace    the part of the time that this host's ranks may train, and until when all this counts; then the
            part of a co-tenant's step in which a micro-batch may begin, where in that step it begins, and how
            long the step is (0: any time)
    beat    when this host's first rank ended its last step; co-tenants find theirs as `beat-beside`

A co-tenant that mostly waits for its data is not slowed by who trains meanwhile: a micro-batch that begins
where its step is idle costs it less than the same one at another time.

Looking costs less than a microsecond where nobody is to be waited for.

Rule: a wait changes when things happen and nothing else: queued work is finished first, then the thread
sleeps. Nothing here raises, and whoever wrote a file may be gone, or be another user: a pace that is not
renewed counts no more, and steps that do not come are not waited for.
"""

from __future__ import annotations

import functools
import mmap
import os
import stat
import struct
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import Final, NamedTuple

from cotenant.checkpoint.talk.protocol import BEAT_BESIDE_FILE, BEAT_FILE, ENV_SOCKET, PACE_FILE

FORMAT: Final = struct.Struct("<ddddd")
BEAT: Final = struct.Struct("<d")
AFTER_REST: Final = 0.1
"""Of a step: the window for the first micro-batch after a rest."""
LATE_STEPS: Final = 3.0
"""A co-tenant whose step takes so many times as long is doing something else: nothing is waited for."""
WAIT_S_MAX: Final = 120.0
"""For its part of the time, between two micro-batches: ranks on other hosts wait in a collective, which ends
their job when it takes too long."""
_LEAST_S: Final = 1e-6
_LOOK_S: Final = 0.005
_LOOK_FOR_STEP_S: Final = 0.0005
"""While it waits, a process looks so often whether its pace has changed, or whether the co-tenant's step has
ended."""


class Allowance(NamedTuple):
    """When a process may train."""

    share: float = 1.0
    """The part of the time."""
    window: float = 1.0
    phase: float = 0.0
    """A micro-batch may begin in this part of the co-tenant's step, from this place in it on."""
    step_s: float = 0.0
    """How long such a step is; 0: micro-batches may begin at any time."""

    @property
    def is_free(self) -> bool:
        return self.share >= 1.0 and (self.window >= 1.0 or self.step_s <= 0.0)

    def narrow(self) -> Allowance:
        """For the first micro-batch after a rest, which could come late in a window: it waits for the next
        one."""
        return self._replace(window=min(self.window, AFTER_REST))

    def opens_in_s(self, since_step_s: float) -> float:
        """How long until a micro-batch may begin, so long after the co-tenant's last step ended; 0: now."""
        if self.window >= 1.0 or not 0.0 <= since_step_s < LATE_STEPS * self.step_s:
            return 0.0
        at = since_step_s / self.step_s
        before = at if at < self.phase else at - 1.0
        """A window that began in the step before may still be open. One that follows the next step's end is
        waited for, however late that is."""
        if before + 1.0 - self.phase <= self.window:
            return 0.0
        return max(_LOOK_FOR_STEP_S, (self.phase - before) * self.step_s)


FREE: Final = Allowance()


class RankPace:
    """The pace of this process, and the ends of its steps. Without files nothing ever waits."""

    def __init__(
        self,
        folder: Path | None,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], None] = sleep,
    ) -> None:
        self._clock, self._sleep, self._folder = clock, sleep, folder
        self._since_s = clock()
        self._pace = self._map(PACE_FILE, FORMAT.size)
        self._beat: mmap.mmap | None = None
        self._beside: int | None = None
        """Descriptor of a file of another user, who may cut it short: it is read, not mapped."""
        self._ahead_s = 0.0
        """Waited for a co-tenant's step, beyond what its part of the time asked for."""
        self.waited_s = 0.0
        """In all."""
        self._step: tuple[float, float] | None = None
        """When the last step ended, and what it had waited by then."""
        self._longest_s = self._told_waited_s = 0.0

    def speak_for_host(self) -> None:
        """From now on co-tenants may look when this process ends its steps: it is its host's first rank."""
        self._beat = self._beat or self._map(BEAT_FILE, BEAT.size, mmap.ACCESS_WRITE)

    def end_step(self) -> None:
        """A step of this process has ended: says so, then waits as `wait` does."""
        now_s = self._clock()
        if self._beat is not None:
            self._beat[: BEAT.size] = BEAT.pack(now_s)
        if self._step is not None:
            ended_s, waited_s = self._step
            self._longest_s = max(self._longest_s, now_s - ended_s - (self.waited_s - waited_s))
        self._step = now_s, self.waited_s
        if self._pace is not None and not self._is_free_at(now_s):
            self.wait()
        else:
            self._since_s, self._ahead_s = now_s, 0.0

    def take(self) -> tuple[float, float]:
        """How long it has waited, and its longest step without such waits, both since this was last asked."""
        taken = self.waited_s - self._told_waited_s, self._longest_s
        self._told_waited_s, self._longest_s = self.waited_s, 0.0
        return taken

    def leave_out(self) -> None:
        """What was done since the last step was none (a save): its time is no step's."""
        self._step = None

    def wait(self) -> None:
        """Waits for its part of the time since it last returned, and for its place in the co-tenant's step;
        returns at once where nothing holds it back."""
        if self._pace is None or self._now().is_free:
            self._since_s, self._ahead_s = self._clock(), 0.0
            return
        finish_queued_work()
        began_s = self._clock()
        worked_s, owed_s, rests = began_s - self._since_s, 0.0, False
        looks_since_s: float | None = None
        while not (pace := self._now()).is_free:
            now_s, left_s = self._clock(), _LOOK_S
            if pace.share > 0.0:
                owed_s = min(WAIT_S_MAX, worked_s * (1.0 - pace.share) / pace.share)
                left_s = owed_s - self._ahead_s - (now_s - began_s)
            else:
                rests = True
            if left_s < _LEAST_S:
                looks_since_s = looks_since_s or now_s
                if now_s - looks_since_s < LATE_STEPS * pace.step_s:  # Whatever the co-tenant says.
                    since_s = self._since_step_beside_s(pace.step_s)
                    left_s = (pace.narrow() if rests else pace).opens_in_s(since_s)
            if left_s < _LEAST_S:
                break
            self._sleep(min(left_s, _LOOK_S))
        self._since_s = self._clock()
        waited_s = self._since_s - began_s
        self._ahead_s = min(owed_s, max(0.0, self._ahead_s + waited_s - owed_s))
        self.waited_s += waited_s

    def _is_free_at(self, now_s: float) -> bool:
        """As `_now().is_free`, in every step: with nothing made for it."""
        assert self._pace is not None
        share, until_s, window, _, step_s = FORMAT.unpack_from(self._pace)
        return bool(until_s <= now_s or (share >= 1.0 and (window >= 1.0 or step_s <= 0.0)))

    def _now(self) -> Allowance:
        """The pace that counts at this moment."""
        assert self._pace is not None
        share, until_s, *place = FORMAT.unpack(self._pace[: FORMAT.size])
        return Allowance(min(1.0, max(0.0, share)), *place) if until_s > self._clock() else FREE

    def _since_step_beside_s(self, step_s: float) -> float:
        """How long ago the co-tenant's last step ended; where it is late, another one may have come."""
        for look_again in (False, True):
            if look_again or self._beside is None:
                self._open_beside()
            data = b"" if self._beside is None else os.pread(self._beside, BEAT.size, 0)
            if len(data) < BEAT.size:
                return inf
            since_s = self._clock() - float(BEAT.unpack(data)[0])
            if since_s < LATE_STEPS * step_s:
                return since_s
        return inf

    def _open_beside(self) -> None:
        if self._beside is not None:
            os.close(self._beside)
        self._beside = self._open(BEAT_BESIDE_FILE, os.O_RDONLY)

    def _map(self, name: str, size: int, access: int = mmap.ACCESS_READ) -> mmap.mmap | None:
        """A file of the supervisor's; None if there is none, or less in it: an older one makes none."""
        file = self._open(name, os.O_RDWR if access == mmap.ACCESS_WRITE else os.O_RDONLY)
        if file is None:
            return None
        try:
            return mmap.mmap(file, size, access=access)
        except (OSError, ValueError):
            return None
        finally:
            os.close(file)

    def _open(self, name: str, flags: int) -> int | None:
        """A descriptor of a plain file in the folder; None if there is none."""
        if self._folder is None:
            return None
        try:
            file = os.open(self._folder / name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        if stat.S_ISREG(os.fstat(file).st_mode):
            return file
        os.close(file)
        return None


@functools.lru_cache(maxsize=1)
def _pace_of(pid: int) -> RankPace:
    socket = os.environ.get(ENV_SOCKET)
    return RankPace(Path(socket).parent if socket else None)


def pace_here() -> RankPace:
    """The pace of this process; a forked one has its own."""
    return _pace_of(os.getpid())


def finish_queued_work() -> None:
    """Waits for the device: what was launched before the pause is not to run during it."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        cuda.synchronize()
