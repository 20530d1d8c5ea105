"""A function as a command, its docstring as its help page, and its signature as its parameters:
`seed: Annotated[int, option("--seed", metavar="S", min=0)] = 0`.

Rule: how every help page reads is decided here: arguments before options, the parts of a verb in the order in
which they are written, each with a whole sentence. A flag stands in one place. Name, default and kind are the
signature's; click gets its parameters from here, and errors about a value are in this project's words.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin

import click
from click.shell_completion import CompletionItem
from click.types import OptionHelpExtra

from cotenant.controller.flags import Completer, Declared

SETTINGS: Final = {"help_option_names": ["-h", "--help"]}

Function = Callable[..., int | None]


def option(*flags: str, **more: Any) -> Declared:
    return Declared(flags, **more)


def argument(**more: Any) -> Declared:
    return Declared(**more)


class Made(NamedTuple):
    """What stands beside a type in `Annotated` whose value is made of several options."""

    make: Callable[..., Any]
    of: Mapping[str, tuple[Any, Any]]
    """By the name of a parameter of `make`: the option's annotation, and its default."""


def parameter(name: str, annotation: Any, default: Any) -> click.Parameter:
    """`default` is `inspect.Parameter.empty` for what has to be given."""
    kind, declared = get_args(annotation)
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    several = kind == list[str]
    settings: dict[str, Any] = {
        "metavar": declared.metavar,
        "help": declared.help,
        "required": default is inspect.Parameter.empty,
        "type": _type(kind, declared),
        "shell_complete": _completing(declared.complete) if declared.complete else None,
    }
    if not settings["required"]:
        settings["default"] = default
    if not declared.flags:
        return Argument([name], nargs=-1 if several else 1, **settings)
    shown = declared.show_default
    return Flag(
        [name, *declared.flags],
        is_flag=True if kind is bool else None,  # With False a value could be left out.
        multiple=several,
        hidden=declared.hidden,
        show_default=default not in (None, "") and kind is not bool if shown is None else shown,
        **settings,
    )


class Argument(click.Argument):
    """An argument of a command: `JOB`, `[TEXT]`, `FILE...` in the usage line, further down its word alone."""

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        word = self.make_metavar(ctx)
        several = "..." if self.nargs != 1 and not word.endswith("...") else ""
        return [f"{word}{several}" if self.required or word.startswith("[") else f"[{word}{several}]"]

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        word, text = super().get_help_record(ctx)
        return word, f"{text}  [required]" if self.required else text


class Flag(click.Option):
    """An option whose help shows no range where its number has none."""

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        extra = super().get_help_extra(ctx)
        if isinstance(self.type, Whole | Number) and self.type.min is self.type.max is None:
            extra.pop("range", None)
        return extra


# --- Values -----------------------------------------------------------------------------------------


def _type(kind: Any, declared: Declared) -> click.ParamType[Any] | None:
    if get_origin(kind) is Literal:
        return OneOf(get_args(kind))
    limits: dict[str, Any] = {"min": declared.min, "max": declared.max}
    if kind is int:
        return Whole(**limits)
    if kind is float:
        return Number(**limits)
    return None if kind is bool else TEXT


class Text(click.ParamType[str]):
    """Where nothing better is known, a shell completes files."""

    name = "text"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


TEXT: Final = Text()


class Whole(click.IntRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", str(value).strip()):  # `int` takes digits of every script.
            self.fail(f"must be a whole number, got {value!r}", param, ctx)
        number = int(value)
        _check_range(self, number, param, ctx)
        return number


class Number(click.FloatRange):
    """`nan` and `inf` are numbers to Python, and to nobody else."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value) if str(value).isascii() else math.nan
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            self.fail(f"must be a number, got {value!r}", param, ctx)
        _check_range(self, number, param, ctx)
        return number


def _check_range(
    kind: click.IntRange | click.FloatRange,
    number: float,
    param: click.Parameter | None,
    ctx: click.Context | None,
) -> None:
    if kind.min is not None and number < kind.min:
        kind.fail(f"must be at least {kind.min}", param, ctx)
    if kind.max is not None and number > kind.max:
        kind.fail(f"must be at most {kind.max}", param, ctx)


class OneOf(click.Choice[str]):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.choices:
            known = ", ".join(map(repr, self.choices))
            self.fail(f"must be one of {known}, got {value!r}", param, ctx)
        return str(value)


def _completing(complete: Completer) -> Callable[..., list[CompletionItem]]:
    def items(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        pairs = [(each, None) if isinstance(each, str) else each for each in complete(incomplete)]
        return [CompletionItem(word, help=about) for word, about in pairs]

    return items


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
    """Makes a function a command. `passes_words`: everything from the first word on belongs to the user's
    command."""
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
    context, made, params = [], {}, []
    for each in inspect.signature(function, eval_str=True).parameters.values():
        declared = get_args(each.annotation)[-1:]
        if each.annotation is click.Context:
            context.append(each.name)
        elif declared and isinstance(declared[0], Made):
            made[each.name] = declared[0]
            params += [parameter(name, *one) for name, one in declared[0].of.items()]
        else:
            params.append(parameter(each.name, each.annotation, each.default))

    def call(**given: Any) -> int | None:
        given = {key: list(it) if isinstance(it, tuple) else it for key, it in given.items()}
        for name, one in made.items():
            given[name] = one.make(**{part: given.pop(part) for part in one.of})
        return function(**given, **dict.fromkeys(context, click.get_current_context()))

    return {"callback": call, "params": params, "help": _help_with_examples(function.__doc__ or "")}


def _help_with_examples(doc: str) -> str:
    """Indented paragraphs of a docstring keep their lines (the `\\b` is click's mark for that)."""
    paragraphs = inspect.cleandoc(doc).split("\n\n")
    return "\n\n".join(f"\b\n{each}" if each.startswith("  ") else each for each in paragraphs)
