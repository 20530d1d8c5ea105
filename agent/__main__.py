"""`python -m cotenant.agent`: the agent of this host, in the foreground.

Rule: an agent checks all settings and reports what is wrong, in one line, before it touches anything. Its
end (Ctrl-C, SIGTERM, a kill) ends no job: supervisors have their own sessions, and the next start finds
them. Exit codes: 0 left as asked, 1 refused or failed, 2 usage, 4 not allowed, 6 can never run here.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cotenant.agent.daemon.agent_log import log
from cotenant.agent.daemon.assembly import AgentProblem, assemble
from cotenant.agent.daemon.core.state import AgentState
from cotenant.agent.daemon.runtime import Runtime
from cotenant.controller.domain import HostReport
from cotenant.controller.system.diagnostics import STANDARD_OUTPUT, say, take_standard_error
from cotenant.controller.system.endpoint import BadEndpoint
from cotenant.controller.system.sections import Settings
from cotenant.controller.system.settings import SettingsError, load
from cotenant.mps.environment import NOT_A_CLIENT

FAILED: Final = 1
USAGE: Final = 2
CODES: Final = {FAILED: "failed", USAGE: "usage", 4: "not-allowed", 6: "never-fits"}
"""The name of an exit code that stands in front of the reason, as everywhere on the command line."""

SHORTCUTS: Final = ("controller", "host", "devices", "state_dir", "keys_dir")
"""Settings of `[agent]` that have a flag of their own."""


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    os.umask(
        0o022
    )  # The code that makes a file sets its mode; folders that jobs walk through must stay open.
    os.environ.update(NOT_A_CLIENT)  # What the agent starts to look at GPUs is no tenant of any MPS daemon.
    try:
        loaded = load(flags_of(options), options.settings or None)
        every_s = loaded.settings.checkpoint.every_s
        is_ours = loaded.origins["checkpoint.every_s"] != "default"
        return asyncio.run(serve(loaded.settings, checkpoint_every_s=every_s if is_ours else None))
    except SettingsError as error:
        return complain(str(error), USAGE)
    except AgentProblem as problem:
        return complain(str(problem), problem.code)
    except BadEndpoint as error:
        return complain(str(error), FAILED)


def parser() -> argparse.ArgumentParser:
    known = argparse.ArgumentParser(prog="python -m cotenant.agent", description="The agent of this host.")
    known.add_argument("--controller", metavar="URL", help="ipc:///PATH or tcp://HOST:PORT")
    known.add_argument("--host", metavar="NAME", help="this host's name in the cluster")
    known.add_argument("--devices", metavar="WHICH", help="auto, cpu:N, cpu:0-1/4, cuda or cuda:0,2")
    known.add_argument("--oversubscribe", action="store_true", help="allow more CPU slots than cores")
    known.add_argument("--state-dir", metavar="DIR", help="attempts, logs, unacknowledged reports")
    known.add_argument("--keys-dir", metavar="DIR", help="keys from `cotenant init`, needed for tcp")
    known.add_argument(
        "--settings", metavar="FILE", type=Path, action="append", help="in place of the usual files"
    )
    known.add_argument("--set", metavar="SECTION.KEY=VALUE", action="append", default=[], dest="pairs")
    return known


def flags_of(options: argparse.Namespace) -> dict[str, object]:
    """Returns the settings that were given on the command line, keyed `section.key`.

    Raises:
        SettingsError: a `--set` without `=`.
    """
    flags: dict[str, object] = {f"agent.{name}": getattr(options, name) for name in SHORTCUTS}
    flags["agent.oversubscribe"] = True if options.oversubscribe else None
    for pair in options.pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise SettingsError(f"--set {pair!r} is not SECTION.KEY=VALUE")
        flags[key] = value
    return flags


async def serve(settings: Settings, *, checkpoint_every_s: float | None = None) -> int:
    parts = assemble(settings, checkpoint_every_s=checkpoint_every_s)
    for warning in parts.warnings:
        log(warning)
    state = AgentState(parts.config, parts.memory)
    runtime = Runtime(state, parts, on_welcome=lambda: say_ready(state.config.report))
    runtime.leave_on_signals()
    log(f"{parts.config.report.host_id}: greeting the controller at {' or '.join(parts.config.controllers)}")
    await runtime.run()
    if runtime.why_halted:
        return complain(runtime.why_halted, FAILED)
    log(f"{parts.config.report.host_id}: leaving; {len(state.running)} running attempts live on")
    return 0


def say_ready(report: HostReport) -> None:
    usable = [device for device in report.devices if device.healthy]
    noun = "device" if len(usable) == 1 else "devices"
    names = ", ".join(device.device_id.partition("/")[2] for device in usable)
    named = f" ({names})" if names else ""
    say(f"agent {report.host_id} ready: {len(usable)} {noun}{named}", STANDARD_OUTPUT)
    for device in report.devices:
        if not device.healthy:
            log(f"{device.device_id} is not offered: {device.note}")


def complain(text: str, code: int) -> int:
    say(f"error[{CODES.get(code, 'failed')}]: agent: {text}")
    return code


if __name__ == "__main__":
    take_standard_error()
    sys.exit(main())
