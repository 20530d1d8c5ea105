"""A job as a YAML file: the options' keys, and `command`.

Rule: every scalar is text until its option parses it. YAML's own guesses (`time: 10:30` is 630, `no`
is false) would change what the user wrote.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from cotenant.controller.submission.options import BY_KEY, Options, read, unknown_key
from cotenant.controller.submission.problems import BadSubmission

FILE_BYTES_MAX: Final = 1024 * 1024
ITEMS_MAX: Final = 10_000


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says. Relative paths in it are relative to where the user stands."""

    command: tuple[str, ...]
    options: Options


def read_job_file(path: Path) -> JobFile:
    """The job in a YAML file.

    Raises:
        BadSubmission: no readable YAML, an unknown key (with the nearest), a wrong value; the line is named.
    """
    root = _root(path)
    options: Options = {}
    command: tuple[str, ...] = ()
    seen: dict[str, int] = {}
    for key_node, node in root.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        where = f"{path}:{line}"
        if key in seen:
            raise BadSubmission(f"{where}: {key!r} is given twice, first in line {seen[key]}")
        seen[key] = line
        if key == "command":
            command = _command(node, where)
        elif (option := BY_KEY.get(key)) is None:
            raise unknown_key(key, where)
        else:
            texts = _texts(node, where, option.key)
            options[key] = read(option, texts if option.repeat else (",".join(texts),), where)
    if not command:
        raise BadSubmission(f"{path}: there is no `command`", "add one: command: python train.py")
    return JobFile(command=command, options=options)


def _root(path: Path) -> yaml.MappingNode:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise BadSubmission(f"{path}: larger than {FILE_BYTES_MAX} bytes; is it a job file?")
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise BadSubmission(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadSubmission(f"{path}: is not a text file") from None
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise BadSubmission(f"{path}{line}: not valid YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(root, yaml.MappingNode):
        raise BadSubmission(f"{path}: must be keys and values, such as `command: python train.py`")
    return root


def _texts(node: yaml.Node, where: str, key: str) -> tuple[str, ...]:
    """A scalar, a list of scalars, or (for variables) a mapping, as texts."""
    if isinstance(node, yaml.ScalarNode):
        return (str(node.value),)
    if isinstance(node, yaml.SequenceNode) and len(node.value) <= ITEMS_MAX:
        return tuple(_scalar(each, where, key) for each in node.value)
    if isinstance(node, yaml.MappingNode) and key == "env" and len(node.value) <= ITEMS_MAX:
        return tuple(
            f"{_scalar(name, where, key)}={_scalar(value, where, key)}" for name, value in node.value
        )
    raise BadSubmission(
        f"{where}: {key} must be a value" + (" or names and values" if key == "env" else " or a list")
    )


def _scalar(node: Any, where: str, key: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise BadSubmission(f"{where}: {key} must not be nested")
    return str(node.value)


def _command(node: yaml.Node, where: str) -> tuple[str, ...]:
    """A line of shell words, or a list of arguments."""
    if isinstance(node, yaml.ScalarNode):
        try:
            return tuple(shlex.split(node.value))
        except ValueError as error:
            raise BadSubmission(f"{where}: command: {str(error).lower()}") from None
    return _texts(node, where, "command")
