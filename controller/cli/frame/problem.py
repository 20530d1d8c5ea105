"""The command line is wrong: what is, what may have been meant, and which help there is to try.

Rule: what click found is read from its exceptions' fields. Its own sentence is kept only where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from cotenant.controller.present.problem import Problem

if TYPE_CHECKING:
    import click


def usage_problem(error: click.UsageError, name: str) -> Problem:
    """`name` is the verb, with its part: `cotenant sim compare`."""
    path = error.ctx.command_path if error.ctx else name
    text, meant = _describe_usage_error(error, path)
    return Problem("usage", text, f"did you mean {meant}?" if meant else f"try `{path} --help`")


def _describe_usage_error(error: click.UsageError, path: str) -> tuple[str, str]:
    """What is wrong, and what may have been meant."""
    import click

    if isinstance(error, click.NoSuchOption):
        known = {name for each in error.ctx.command.params for name in each.opts} if error.ctx else set()
        return f"no such option: {error.option_name}", _meant_option(error, known)
    if isinstance(error, click.NoSuchCommand):
        near = next(iter(error.possibilities or ()), "")
        return f"no such command {error.command_name!r}", f"`{path} {near}`" if near else ""
    if (
        isinstance(error, click.BadParameter)
        and error.param
        and not isinstance(error, click.MissingParameter)
    ):
        return f"{error.param.opts[-1]} {error.message}", ""
    text = error.format_message()
    return text[:1].lower() + text[1:], ""


OPTIONS_ELSEWHERE: Final = {
    option: ours
    for ours, options in {
        "--gpus": "--gres --ngpus --num-gpus --gpu --gpus-per-node --ntasks --nproc-per-node",
        "--cpus": "--cpus-per-task --cpus-per-gpu --num-cpus",
        "--mem": "--mem-per-gpu --gpu-mem --vram",
        "--host-mem": "--memory --mem-per-cpu --ram",
        "--time": "--timeout --time-limit --walltime",
        "--name": "--job-name --jobname",
        "--workdir": "--chdir --cwd --working-dir",
        "--after": "--dependency --depends-on",
        "--class": "--qos",
        "--organisation": "--account --project",
        "--priority": "--nice",
        "--constraint": "--partition --queue",
        "--env": "--environment",
        "--retries": "--requeue --restart --max-restarts",
        "--tail": "--lines",
        "--policies": "--policy",
        "--policy": "--scheduler",
    }.items()
    for option in options.split()
}
"""Options of Slurm and others, and what is closest to them here."""


def _meant_option(error: click.NoSuchOption, known: set[str]) -> str:
    """The option of the command that was meant: what the word begins, else what others call so, else the
    nearest."""
    word = error.option_name
    begun = sorted(each for each in known if each.startswith(word)) if word.startswith("--") else []
    elsewhere = OPTIONS_ELSEWHERE.get(word, "")
    return next(filter(known.__contains__, (*begun, elsewhere)), "") or next(
        iter(error.possibilities or ()), ""
    )


def part_of(command: Any, name: str, words: Sequence[str]) -> str:
    """`cotenant sim compare` of `cotenant sim compare --jobs`."""
    for word in words:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        name = f"{name} {word}"
    return name
