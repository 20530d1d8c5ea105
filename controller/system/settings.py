"""Where each setting comes from: flag > environment > file > default.

Rule: the origin of every value is kept, so that `cotenant config` can answer "why is it that?". A key
or a type that is not known is an error that names file and line and the nearest key that exists: a
setting with a typing mistake must not be ignored.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from cotenant.controller.domain import OrganisationSettings
from cotenant.controller.system.endpoint import endpoints_of
from cotenant.controller.system.sections import SECTION_NAMES, Settings

SYSTEM_DIR: Final = Path("/etc/cotenant")
ORGANISATIONS: Final = "organisations"
"""The section of sections: `[organisations.NAME]`."""
ENV_FILE: Final = "COTENANT_CONFIG"
"""One file that is read instead of all others."""
ENV_PATTERN: Final = re.compile(r"COTENANT_([A-Z]+)__([A-Z0-9_]+)")
FILE_BYTES_MAX: Final = 1024 * 1024
FLOAT_MAX: Final = 1e9
"""Of a time in seconds, 31 years; beyond it a system call that waits may refuse the number."""
INT_MAX: Final = 10**15

ABOVE_ZERO: Final = frozenset(
    (
        "controller.lease_s",
        "controller.silent_after_s",
        "controller.snapshot_every",
        "policy.stop_deadline_s",
        "agent.port_count",
        "agent.heartbeat_s",
        "agent.log_bytes_max",
        "agent.start_deadline_s",
    )
)

ENDPOINTS: Final = str | tuple[str, ...]
IN_WORDS: Final[dict[Any, str]] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple[str, ...]: "a list of text",
    ENDPOINTS: "text, or a list of text",
}


class SettingsError(ValueError):
    """A setting that cannot be used; the text says where it is and what is wrong, in one line."""


class LoadedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings, and where each one came from."""

    settings: Settings
    origins: dict[str, str]
    """`section.key` -> `default`, `flag`, `environment NAME` or `file PATH:LINE`."""
    files: tuple[Path, ...] = ()
    """The files that were read, weakest first."""

    def value(self, key: str) -> Any:
        section, _, name = key.partition(".")
        if section == ORGANISATIONS:
            organisation, _, name = name.rpartition(".")
            return getattr(self.settings.organisations[organisation], _FIELDS[name])
        return getattr(getattr(self.settings, section), name)


def load(
    flags: Mapping[str, object] | None = None,
    files: Sequence[Path] | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedSettings:
    """The settings in force. `flags` are keyed `section.key`; a value of None was not given.

    Raises:
        SettingsError: an unknown key, a wrong type, a number out of range, a file that cannot be read.
    """
    environ = os.environ if environ is None else environ
    read = tuple(default_files(environ) if files is None else files)
    values: dict[str, object] = {}
    origins = dict.fromkeys(keys(), "default")
    layers = [from_file(path) for path in read]
    layers += [from_environment(environ), from_flags(flags or {})]
    for layer in layers:
        for key, value, origin in layer:
            values[key] = check_value(key, value, origin)
            origins[key] = origin
    sections: dict[str, dict[str, Any]] = {
        section: {key.partition(".")[2]: v for key, v in values.items() if key.startswith(f"{section}.")}
        for section in SECTION_NAMES
    }
    organisations: dict[str, Any] = {}
    for key, value in values.items():
        if key.startswith(f"{ORGANISATIONS}."):
            organisation, _, name = key.partition(".")[2].rpartition(".")
            organisations.setdefault(organisation, {})[name] = value
    try:
        given = {ORGANISATIONS: organisations} | sections
        settings = msgspec.convert(given, Settings) if values else Settings()
    except (
        msgspec.ValidationError
    ) as error:  # A range that its section knows: "profiler.seconds must be ...".
        what = str(error).partition(" - at ")[0]
        name, _, problem = what.partition(" ")
        key = next((each for each in values if each == name or each.endswith(f".{name}")), name)
        place = origins.get(key, "").removeprefix("file ")
        raise SettingsError(f"{place}: {key} {problem}") from None
    return LoadedSettings(settings=settings, origins=origins, files=read)


def default_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """`/etc/cotenant/*.toml` in name order, then the user's own file; or only the one in COTENANT_CONFIG."""
    if only := environ.get(ENV_FILE):
        yield Path(only)
        return
    if SYSTEM_DIR.is_dir():
        yield from (path for path in sorted(SYSTEM_DIR.glob("*.toml")) if os.access(path, os.R_OK))
    user = user_file(environ)
    if os.path.isfile(user):  # Also of a service without a home, which may not even look.
        yield user


def user_file(environ: Mapping[str, str]) -> Path:
    home = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or "~").expanduser() / ".config")
    return Path(home) / "cotenant" / "cotenant.toml"


# --- What exists ------------------------------------------------------------------------------------


@cache
def types() -> Mapping[str, Any]:
    """`section.key` -> its type."""
    found: dict[str, Any] = {}
    for section, struct in get_type_hints(Settings).items():
        if section == ORGANISATIONS:
            continue
        found.update({f"{section}.{key}": kind for key, kind in get_type_hints(struct).items()})
    return found


_FIELDS: Final = {each.encode_name: each.name for each in msgspec.structs.fields(OrganisationSettings)}
_OF_ORGANISATION: Final = {
    name: get_type_hints(OrganisationSettings)[field] for name, field in _FIELDS.items()
}


def type_of(key: str) -> Any:
    """Returns the type of the setting `key`.

    Raises:
        KeyError: there is no such setting.
    """
    section, _, name = key.partition(".")
    return _OF_ORGANISATION[name.rpartition(".")[2]] if section == ORGANISATIONS else types()[key]


def keys() -> tuple[str, ...]:
    """Returns the keys of all settings, without their types, which only a setting that is given needs."""
    sections = ((section, getattr(Settings(), section)) for section in SECTION_NAMES)
    return tuple(f"{section}.{name}" for section, given in sections for name in given.__struct_fields__)


def nearest(key: str) -> str:
    """A hint that ends an error message."""
    # First the right key in the wrong section, then a typing mistake.
    near = [known for known in types() if known.partition(".")[2] == key.partition(".")[2]]
    if not near:
        import difflib

        near = difflib.get_close_matches(key, types(), n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else "`cotenant config` lists all keys"


# --- Layers: (key, value, origin) -------------------------------------------------------------------

SettingsLayer = Iterable[tuple[str, object, str]]


def from_file(path: Path) -> SettingsLayer:
    tables, lines = read_toml(path)
    yield from _organisations(path, tables.pop(ORGANISATIONS, {}), lines)
    for section, table in tables.items():
        where = f"{path}:{line_of(lines, section, '')}"
        if section not in SECTION_NAMES:
            raise SettingsError(f"{where}: unknown section [{section}]; there are {', '.join(SECTION_NAMES)}")
        if not isinstance(table, dict):
            raise SettingsError(f"{where}: `{section}` must be a section, written [{section}]")
        for name, value in table.items():
            key = f"{section}.{name}"
            where = f"{path}:{line_of(lines, section, name)}"
            if key not in types():
                raise SettingsError(f"{where}: unknown setting `{key}`; {nearest(key)}")
            yield key, value, f"file {where}"


def _organisations(path: Path, tables: Any, lines: Sequence[str]) -> SettingsLayer:
    """Yields the settings of every section `[organisations.NAME]`."""
    if not isinstance(tables, dict):
        raise SettingsError(f"{path}:1: `{ORGANISATIONS}` must be sections, written [{ORGANISATIONS}.NAME]")
    for organisation, table in tables.items():
        section = f"{ORGANISATIONS}.{organisation}"
        where = f"{path}:{line_of(lines, section, '')}"
        if not isinstance(table, dict):
            raise SettingsError(f"{where}: `{organisation}` must be a section, written [{section}]")
        if not organisation or any(character <= " " for character in organisation):
            raise SettingsError(f"{where}: {organisation!r} is no name of an organisation: one word")
        for name, value in table.items():
            where = f"{path}:{line_of(lines, section, name)}"
            if name not in _OF_ORGANISATION:
                there = ", ".join(_OF_ORGANISATION)
                raise SettingsError(f"{where}: unknown setting `{section}.{name}`; there are {there}")
            yield f"{section}.{name}", value, f"file {where}"


def read_toml(path: Path) -> tuple[dict[str, Any], list[str]]:
    import tomllib

    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise SettingsError(f"{path}: larger than {FILE_BYTES_MAX} bytes; is it a settings file?")
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text), text.splitlines()
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: not valid TOML: it is not a text file") from None
    except (ValueError, RecursionError) as error:  # Also a number of thousands of digits.
        raise SettingsError(f"{path}: not valid TOML: {error}") from None


def line_of(lines: Sequence[str], section: str, name: str) -> int:
    """The line of a key (or of its section's header), 1 if it is written in a way we do not look for."""
    inside, header = "", 1
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text.startswith("["):
            inside = text.strip("[] \t").split("]")[0].strip(" \"'")
            header = number if inside == section else header
        elif name and inside == section and re.match(rf"[\"']?{re.escape(name)}[\"']?\s*=", text):
            return number
    return header


def from_environment(environ: Mapping[str, str]) -> SettingsLayer:
    for variable in sorted(environ):
        if match := ENV_PATTERN.fullmatch(variable):
            key = f"{match[1]}.{match[2]}".lower()
            if key not in types():
                raise SettingsError(f"environment {variable}: unknown setting `{key}`; {nearest(key)}")
            yield key, as_typed(key, environ[variable]), f"environment {variable}"


def from_flags(flags: Mapping[str, object]) -> SettingsLayer:
    for key, value in flags.items():
        if value is None:
            continue
        if key not in types():
            raise SettingsError(f"unknown setting `{key}`; {nearest(key)}")
        yield key, as_typed(key, value) if isinstance(value, str) else value, "flag"


def as_typed(key: str, text: str) -> object:
    """Text as the key's type; left as it is where it does not fit (`checked` says so)."""
    if types()[key] == ENDPOINTS and len(found := endpoints_of(text)) > 1:
        return found
    if types()[key] == tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        value: object = msgspec.convert(text.strip(), types()[key], strict=False)
    except msgspec.ValidationError:
        return text
    return value


def describe_type(kind: Any) -> str:
    choices = [each for each in get_args(kind) if each] if get_origin(kind) is Literal else []
    return f"one of {', '.join(choices)}" if choices else IN_WORDS[kind]


def check_value(key: str, value: object, origin: str) -> object:
    kind = type_of(key)
    place = origin.removeprefix("file ")
    try:
        value = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise SettingsError(
            f"{place}: `{key}` must be {describe_type(kind)}, got {_format_value(value)}"
        ) from None
    for text in (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ():
        if any(character < " " or character == "\x7f" for character in text):
            raise SettingsError(f"{place}: `{key}` must be one line of text, got {text!r}")
        if text.startswith("~") and os.path.expanduser(text) == text:
            raise SettingsError(f"{place}: `{key}`: {text}: there is no such account")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low = "above 0" if key in ABOVE_ZERO else "0 or more"
        if not math.isfinite(value) or value < 0 or (value == 0 and key in ABOVE_ZERO):
            raise SettingsError(f"{place}: `{key}` must be {low}, got {value}")
        if value > (FLOAT_MAX if kind is float else INT_MAX):
            raise SettingsError(f"{place}: `{key}` is too large: {value:g}")
    return value


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, str) else str(value)
