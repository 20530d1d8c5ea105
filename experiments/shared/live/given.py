"""What scripts with live runs take from their command line, and how they keep what they measured."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cotenant.controller.policies import registry


def parameter(policy: str, text: str) -> tuple[str, str | int | float | bool]:
    key, _, value = text.partition("=")
    known = registry.defaults(policy)
    if key not in known:
        raise SystemExit(f"{policy} has no parameter {key!r}; it has {', '.join(known)}")
    kind = type(known[key])
    return key, value.lower() == "true" if kind is bool else kind(value)


def write(path: Path, value: object) -> None:
    """Whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
    partial.replace(path)
