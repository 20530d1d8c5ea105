"""`--grid`: values by name, whose product are the tasks of an array.

Rule: a value takes the place of `{NAME}` as it was written, inside words of an argument list: no shell sees
it, and no format string is executed. Braces around anything else stay. The last grid changes fastest, as the
innermost of nested loops. Pure but for a look at the files that a command names.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import structs

from cotenant.controller.domain import GRIDS_MAX, JobSpec
from cotenant.controller.present.problem import suggestion
from cotenant.controller.submission.options import BadSubmission
from cotenant.controller.submission.quantities import ARRAY_TASKS_MAX, ArrayTasks, GridValues
from cotenant.controller.submission.recording import is_secret

VARIABLE: Final = "COTENANT_GRID_"
SCRIPT_BYTES_MAX: Final = 1024 * 1024
_BRACES: Final = re.compile(r"(?<!\$)\{([A-Za-z][\w.-]{0,63})\}")

TaskValues = tuple[tuple[str, str], ...]
"""Names and values of one task."""


class Grids(NamedTuple):
    """The tasks of an array that grids make; none where no grid was given."""

    tasks: tuple[TaskValues, ...]
    at_once: int = 0

    @property
    def array(self) -> ArrayTasks | None:
        """The indices of the tasks, in the order of the product."""
        return ArrayTasks(tuple(range(len(self.tasks))), self.at_once) if self.tasks else None

    def fill(self, words: Sequence[str], task: int = 0) -> tuple[str, ...]:
        """The words as a task has them; without grids, as they are."""
        values = dict(self.tasks[task]) if self.tasks else {}
        return tuple(_fill(word, values) for word in words) if values else tuple(words)

    def task(self, spec: JobSpec, at: int, env: Sequence[str]) -> JobSpec:
        """The task `at` of the array that `spec` stands for. `env`: the variables in which values go too."""
        if not self.tasks:
            return spec
        values, launch = dict(self.tasks[at]), spec.launch
        filled = {name: _fill(launch.env[name], values) for name in env if name in launch.env}
        given = {variable_of(name): value for name, value in values.items()}
        launch = structs.replace(
            launch,
            argv=self.fill(launch.argv, at),
            env={**launch.env, **filled, **given},
            output=_fill(launch.output, values),
        )
        link, name = (_fill(text, values) for text in (spec.link, spec.name))
        return structs.replace(spec, launch=launch, link=link, name=name, parameters=self.tasks[at])


def grids_of(options: Mapping[str, Any], words: Sequence[str], workdir: Path) -> Grids:
    """The tasks that the options' grids make of a command. Raises BadSubmission: a grid is wrong, or is not
    used."""
    given: tuple[GridValues, ...] = options.get("grid", ())
    if not given:
        return Grids(())
    if "array" in options:
        raise BadSubmission("--grid makes an array of its own: it does not go with --array", "leave out one")
    count = math.prod(len(each.values) for each in given)
    if count > ARRAY_TASKS_MAX:
        sizes = " x ".join(f"{each.name} ({len(each.values)})" for each in given)
        hint = "take fewer values, or submit it in parts"
        raise BadSubmission(f"--grid: {sizes} make {count} tasks of {ARRAY_TASKS_MAX} possible", hint)
    _check_names(given)
    at_once = {each.at_once for each in given if each.at_once}
    if len(at_once) > 1:
        raise BadSubmission(f"--grid: %{' and %'.join(map(str, sorted(at_once)))}", "say one of them, once")
    texts = [*words, *(value for _, value in options.get("env", ()) if value)]
    _check_use([each.name for each in given], texts, words, workdir)
    product = itertools.product(*(each.values for each in given))
    names = [each.name for each in given]
    return Grids(tuple(tuple(zip(names, values, strict=True)) for values in product), sum(at_once))


def variable_of(name: str) -> str:
    """The variable that has a task's value of a grid: COTENANT_GRID_LR."""
    return VARIABLE + re.sub(r"\W", "_", name).upper()


def _check_names(given: Sequence[GridValues]) -> None:
    known: dict[str, str] = {}
    for name in (each.name for each in given):
        if (variable := variable_of(name)) in known:
            raise BadSubmission(
                f"--grid {known[variable]} and {name} are one variable, {variable}", "rename one"
            )
        if is_secret(variable):
            hint = "call it otherwise; a secret is given with --env"
            raise BadSubmission(
                f"--grid {name}: values of grids are shown, and this name is a secret's", hint
            )
        known[variable] = name
    if len(known) > GRIDS_MAX:
        raise BadSubmission(f"--grid: {len(known)} names of {GRIDS_MAX} possible")


def _check_use(names: Sequence[str], texts: Sequence[str], words: Sequence[str], workdir: Path) -> None:
    """Checks that every grid is used, and that no braces look like a grid misspelt."""
    used = {match[1] for text in texts for match in _BRACES.finditer(text)}
    unused = [name for name in names if name not in used]
    for each in sorted(used.difference(names)):
        if near := suggestion(each.lower(), names, cutoff=0.6):
            raise BadSubmission(f"{{{each}}} is the name of no --grid", near)
    scripts = "".join(_scripts(words, workdir)) if unused else ""
    for name in unused:
        if variable_of(name) not in scripts:
            raise BadSubmission(
                f"--grid {name} is not used: neither {{{name}}} nor {variable_of(name)} is in the command",
                f"write {{{name}}} where its value belongs, or --env MINE={{{name}}}",
            )


def _scripts(words: Sequence[str], workdir: Path) -> Iterator[str]:
    """The words, and the texts of the files among them."""
    for word in words:
        yield f"{word}\n"
        path = workdir / word
        try:
            if path.is_file() and path.stat().st_size <= SCRIPT_BYTES_MAX:
                yield path.read_text(errors="replace")
        except (OSError, ValueError):  # No name of a file, or one that may not be read.
            continue


def _fill(text: str, values: Mapping[str, str]) -> str:
    return _BRACES.sub(lambda match: values.get(match[1], match[0]), text)
