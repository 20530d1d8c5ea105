"""What may go wrong, one class per way: callers can tell them apart without reading a sentence. Rule:
`result()` raises what the job's own function raised, with the remote traceback as its cause; these are for
everything else. The caller's time limit (`StillRunning`, `JobPreempted`) is a TimeoutError; a job's own
(`JobTimedOut`) is not, for the job has ended."""

from __future__ import annotations

from concurrent.futures import CancelledError


class CotenantError(Exception):
    """The base of all errors of ours. `hint` says what to try."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.hint = hint


class BadCall(CotenantError, ValueError):
    """A submission that makes no sense; nothing was sent."""


class NoController(CotenantError, ConnectionError):
    """The error raised when no controller answers."""


class RequestRefused(CotenantError):
    """The controller, or this machine's configuration, says no; `code` is the command line's."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


class StillRunning(CotenantError, TimeoutError):
    """The caller's timeout is over; the job goes on."""


class JobPreempted(StillRunning):
    """The caller's timeout is over, and the job waits because it had to make room. It will resume."""


class JobFailed(CotenantError):
    """The error for a job that has ended, and not well. Each of the other errors about an ended job is a case
    of it."""

    def __init__(self, job_id: str, reason: str, exit_code: int | None = None, log_tail: str = "") -> None:
        text = f"job {job_id} {reason}"
        super().__init__(f"{text}; the end of its log:\n{log_tail}" if log_tail else text)
        self.job_id = job_id
        self.reason = reason
        self.exit_code = exit_code
        self.log_tail = log_tail

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.job_id, self.reason, self.exit_code, self.log_tail)


class JobTimedOut(JobFailed):
    """The error for a job whose own time limit (`time=`) was over."""


class JobCancelled(JobFailed, CancelledError):
    """Somebody cancelled it, or what it depended on did not finish."""


class JobLost(JobFailed):
    """Hosts failed under it too often; it is held, and `cotenant release` tries it again."""


class NoResult(JobFailed):
    """The error for a job that finished, and of which there is no result that may be read."""


class RemoteTraceback(Exception):
    """Where it was raised in the job: the cause of an exception that a function raised there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class RemoteError(CotenantError):
    """Stands for an exception of the function's that cannot be pickled. `kind` is its class's name."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
