"""A job as a YAML file: the options' keys, and `command`.

Rule: every scalar is text until its option parses it. YAML's own guesses (`time: 10:30` is 630, `no`
is false) would change what the user wrote.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final

import yaml

from cotenant.controller.submission.options import (
    BadSubmission,
    Option,
    Options,
    option_of,
    read,
)
from cotenant.controller.submission.quantities import quoted_text

FILE_BYTES_MAX: Final = 1024 * 1024
ITEMS_MAX: Final = 10_000


def read_job_file(path: Path) -> tuple[tuple[str, ...], Options]:
    """The command and the options of the job in a YAML file. Relative paths in it are relative to where the
    user stands.

    Raises:
        BadSubmission: no readable YAML, an unknown key (with the nearest), a wrong value; the line is named.
    """
    root = _root(path)
    options: Options = {}
    command: tuple[str, ...] = ()
    seen: dict[str, int] = {}
    for key_node, node in root.value:
        line = key_node.start_mark.line + 1
        where = f"{path}:{line}"
        key = _scalar(key_node, where, "a key")
        if key in seen:
            raise BadSubmission(f"{where}: {key!r} is given twice, first in line {seen[key]}")
        seen[key] = line
        if key == "command":
            command = _command(node, where)
        else:
            option = option_of(key, where)
            options[key] = read(option, _texts(node, where, option), where)
    if not command:
        raise BadSubmission(f"{path}: there is no `command`", "add one: command: python train.py")
    return command, options


def _root(path: Path) -> yaml.MappingNode:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise BadSubmission(f"{path}: larger than {FILE_BYTES_MAX} bytes; is it a job file?")
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise BadSubmission(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadSubmission(f"{path}: is not a text file") from None
    # An escape such as "\\UFFFFFFFF", a version of 5,000 digits: what the library does not check.
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        said = filter(None, (getattr(error, "context", None), getattr(error, "problem", None)))
        raise BadSubmission(f"{path}{line}: not valid YAML: {', '.join(said) or error}") from None
    if not isinstance(root, yaml.MappingNode):
        raise BadSubmission(f"{path}: must be keys and values, such as `command: python train.py`")
    return root


def _texts(node: yaml.Node, where: str, option: Option) -> tuple[str, ...]:
    """A scalar, a list of scalars or (for variables) a mapping, as texts."""
    if isinstance(node, yaml.ScalarNode):
        return (_scalar(node, where, option.key),)
    if isinstance(node, yaml.SequenceNode) and (option.repeat or option.listed):
        texts = _items(node, where, option.key)
        return texts if option.repeat else (",".join(texts),)
    if isinstance(node, yaml.MappingNode) and option.key in ("env", "grid"):
        return _variables(node, where, option.key)
    wanted = "one value" + ", or a list of them" * (option.repeat or option.listed)
    wanted += ", or names and values" * (option.key in ("env", "grid"))
    raise BadSubmission(f"{where}: {option.key} must be {wanted}, got {_kind(node)}")


def _kind(node: Any) -> str:
    return "a list" if isinstance(node, yaml.SequenceNode) else "names and values"


def _items(node: yaml.SequenceNode, where: str, key: str) -> tuple[str, ...]:
    if len(node.value) > ITEMS_MAX:
        raise BadSubmission(f"{where}: {key} has {len(node.value)} items, more than {ITEMS_MAX}")
    return tuple(_scalar(each, where, key) for each in node.value)


def _variables(node: yaml.MappingNode, where: str, key: str) -> tuple[str, ...]:
    """Names and values; those of a grid may be lists."""
    if len(node.value) > ITEMS_MAX:
        raise BadSubmission(f"{where}: {key} has {len(node.value)} names, more than {ITEMS_MAX}")
    found: dict[str, str] = {}
    for name_node, value in node.value:
        name = _scalar(name_node, where, key)
        if name in found:
            raise BadSubmission(f"{where}: {key} gives {name} twice")
        if "=" in name:
            raise BadSubmission(f"{where}: {key} must be names and values, got the name {quoted_text(name)}")
        is_list = key == "grid" and isinstance(value, yaml.SequenceNode)
        what = f"{key}: {name}"
        texts = _items(value, where, what) if is_list else (_scalar(value, where, what),)
        if is_list and any("," in text for text in texts):
            raise BadSubmission(f"{where}: {what} has a value with a comma in it")
        found[name] = ",".join(texts)
    return tuple(f"{name}={value}" for name, value in found.items())


def _scalar(node: Any, where: str, key: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise BadSubmission(f"{where}: {key} must not be nested, got {_kind(node)} in it")
    if (
        node.tag == _NOTHING
    ):  # `key:` alone, `null` or `~`, which nobody means as a word; in quotes it is one.
        raise BadSubmission(f"{where}: {key} has no value", "give one, or leave the line out")
    return str(node.value)


_NOTHING: Final = "tag:yaml.org,2002:null"


def _command(node: yaml.Node, where: str) -> tuple[str, ...]:
    """A line of shell words, or a list of arguments."""
    if isinstance(node, yaml.SequenceNode):
        return _items(node, where, "command")
    if not isinstance(node, yaml.ScalarNode):
        raise BadSubmission(f"{where}: command must be a line or a list of words, got {_kind(node)}")
    line = _scalar(node, where, "command")
    try:
        return tuple(shlex.split(line))
    except ValueError as error:
        raise BadSubmission(f"{where}: command: {str(error).lower()}") from None
