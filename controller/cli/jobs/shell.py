"""`cotenant shell`: a shell, or any command, on a device and on this terminal; `attach` connects again.

Rule: a shell is a job like any other, but for what is kept of it: nothing. It says so before it starts.
"""

from __future__ import annotations

from typing import Annotated, Final

from cotenant.controller.cli.frame.command import argument, option
from cotenant.controller.cli.frame.output import EndpointFlag
from cotenant.controller.cli.jobs import run
from cotenant.controller.cli.jobs.forwarding import PortPair, port_pair
from cotenant.controller.cli.jobs.login_shell import login_shell, shell_of_image
from cotenant.controller.cli.jobs.show import JobArgument
from cotenant.controller.cli.jobs.submit import JobFlags, prepare_request
from cotenant.controller.cli.jobs.terminal_session import TerminalSession
from cotenant.controller.client.asking import PATIENCE_S, asking, loaded_settings
from cotenant.controller.domain import ON_DEVICES, JobId
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.screen import tell
from cotenant.controller.present.units import duration
from cotenant.controller.submission.flags import value_of
from cotenant.controller.submission.options import BY_KEY, Given
from cotenant.controller.wire import clients as wire

NOT_OF_SHELLS: Final = (
    "array", "grid", "retries", "requeue_at_limit", "resumable", "checkpoint", "accumulate", "batch_size",
    "iterations", "progress", "profile", "watchdog", "launch", "cold",
)  # fmt: skip
"""Options of what is resumed, split, measured or taken to hang."""
OF_SHELLS: Final = {"resumable": False, "progress": "never", "profile": "never", "watchdog": 0.0}


ForwardFlag = Annotated[
    list[str] | None,
    option("--forward", metavar="PORT[:PORT]", help="This port here is a port of the job."),
]


def shell(
    command: Annotated[
        list[str] | None,
        argument(metavar="[--] [CMD...]", help="What to run in place of your login shell."),
    ] = None,
    forward: ForwardFlag = None,
    endpoint: EndpointFlag = None,
    *,
    flags: JobFlags,
) -> int:
    """Wait for a device and open a shell on it, on this terminal.

    It is a job: it queues, counts in limits and usage, and has the devices, memory and cores that were
    asked for. It is not resumable, and ends at its time limit (shell.time_limit_s, or -t). Where the
    connection is lost it goes on; `cotenant attach` connects again. Enter ~. leaves it running.

    While it waits, Ctrl-C cancels it; then every key goes to the shell. From a pipe, its end is the
    end of what is typed.

    Exit code: that of the shell; 128 + n after signal n; 125 if it never started.

    For example:

      cotenant shell
      cotenant shell -g 2 -t 4h
      cotenant shell -g 0.5 -- python
      cotenant shell --forward 8888 -- jupyter lab --no-browser
    """
    refused = [BY_KEY[key].flag for key in NOT_OF_SHELLS if key in flags]
    if refused:
        raise Problem(
            "usage", f"{', '.join(refused)}: not for a shell, which is not resumable", "use `run --pty`"
        )
    ports = ports_of(forward)
    limit_s = loaded_settings(endpoint).settings.shell.time_limit_s
    usual = {**OF_SHELLS, "time": limit_s}
    if not command:
        usual["name"], command = shell_of_image() if "image" in flags else login_shell()
    said = {key: Given(value=value, where="shell") for key, value in usual.items()}
    said |= run.terminal_launch(command, flags)
    request = prepare_request(command, said | flags, endpoint, command_only=True)
    tell_how_it_ends(request.specs[0].time_limit_s or limit_s)
    return run.watch_terminal(run.request_with_terminal(request), False, endpoint, ports)


def tell_how_it_ends(limit_s: float) -> None:
    tell(f"what runs on a terminal cannot be resumed; it ends after {duration(limit_s)} at most (-t TIME)")


def ports_of(forward: list[str] | None) -> list[PortPair]:
    """What `--forward` means. Raises Problem."""
    return [value_of("--forward", each, port_pair) for each in forward or ()]


def attach(job: JobArgument, forward: ForwardFlag = None, endpoint: EndpointFlag = None) -> int:
    """Connect to the terminal of a job again: a shell, or `run --pty`. Only its owner can.

    First comes the end of what was shown before, up to 64 KiB. Whoever was connected is told, and
    leaves. Enter ~. leaves the job running.

    Exit code: that of the job, once it ends; 0 after ~.

    For example:

      cotenant attach 7
      cotenant attach 7 --forward 8080:80
    """
    ports = ports_of(forward)
    with asking(endpoint, patience_s=PATIENCE_S) as client:
        found = client.ask(wire.ShowJob(job_id=JobId(job))).job
        if not found.spec.launch.terminal:
            raise Problem("usage", f"job {job} has no terminal", f"its output: cotenant logs -f {job}")
        if run.is_over(found):
            raise Problem("refused", f"job {job} has ended", f"what it showed: cotenant logs {job}")
        watch = run.RunWatch(
            client,
            found.job_id,
            False,
            (),
            terminal=TerminalSession(client, found.job_id, ports),
            first_attempt=found.attempt + (found.phase not in ON_DEVICES),
            cancels=False,
        )
        return watch.to_the_end()
