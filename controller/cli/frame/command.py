"""A function as a command, its signature as its parameters, its docstring as its help page.

Rule: how every help page reads is decided here: arguments before options, the parts of a verb in the order in
which they are written, each with a whole sentence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import click

from cotenant.controller.cli.frame.parameters import Argument, parameter

SETTINGS: Final = {"help_option_names": ["-h", "--help"]}

Function = Callable[..., int | None]


class VerbCommand(click.Command):
    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        arguments = [each for each in self.params if isinstance(each, Argument)]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl([each.get_help_record(ctx) for each in arguments])

    def get_short_help_str(self, limit: int = 0) -> str:
        """The whole first paragraph: long lines are folded, not cut."""
        return " ".join((self.help or "").partition("\n\n")[0].split())


class Group(VerbCommand, click.Group):
    """A verb with parts (`nodes drain`, `sim run`)."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def part(self, name: str, **more: Any) -> Callable[[Function], Function]:
        """The decorated function is this part; `more` is for `command`."""

        def add(function: Function) -> Function:
            self.add_command(command(function, name, **more))
            return function

        return add


def command(function: Function, name: str, *, passes_words: bool = False) -> VerbCommand:
    """`passes_words`: everything from the first word on belongs to the user's command."""
    settings = {**SETTINGS, "allow_interspersed_args": not passes_words}
    return VerbCommand(name, context_settings=settings, **_read(function))


def group(cls: type[Group] = Group, *, acts_alone: bool = False) -> Callable[[Function], Group]:
    """The decorated function is the verb alone where it `acts_alone`; else only its help page."""

    def made(function: Function) -> Group:
        read = _read(function)
        if not acts_alone:
            read["callback"] = _print_help
        return cls(
            function.__name__,
            context_settings=SETTINGS,
            invoke_without_command=True,
            subcommand_metavar="COMMAND [ARGS]...",
            **read,
        )

    return made


def _print_help() -> None:
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        print(context.get_help())


def _read(function: Function) -> dict[str, Any]:
    """What click needs to know of a function."""
    takes = inspect.signature(function, eval_str=True).parameters.values()
    wants_context = [each.name for each in takes if each.annotation is click.Context]

    def call(**given: Any) -> int | None:
        given.update(dict.fromkeys(wants_context, click.get_current_context()))
        return function(**{key: list(it) if isinstance(it, tuple) else it for key, it in given.items()})

    return {
        "callback": call,
        "params": [
            parameter(each.name, each.annotation, each.default)
            for each in takes
            if each.name not in wants_context
        ],
        "help": _with_examples(function.__doc__ or ""),
    }


def _with_examples(doc: str) -> str:
    """Indented paragraphs of a docstring keep their lines (the `\\b` is click's mark for that)."""
    paragraphs = inspect.cleandoc(doc).split("\n\n")
    return "\n\n".join(f"\b\n{each}" if each.startswith("  ") else each for each in paragraphs)
