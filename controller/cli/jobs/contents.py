"""What is in a file that a command has left: its values, by their path in it, without torch.

Rule: nothing of a pickle is called or imported. Two files that hold the same values count as equal: in which
order a pickle names them, and which of them it names once for two places, is chance after a resume.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

_PARTS_MAX: Final = 10_000
_MAPPINGS: Final = frozenset(("OrderedDict", "defaultdict", "dict"))


def parts_of(path: Path) -> dict[str, str]:
    """A number for each value in a file that torch.save or pickle has written; of any other file, one for all
    of it, by the empty path."""
    try:
        tree = _read_tree(path)
    except Exception:  # noqa: BLE001  # whatever a pickle is made of, the bytes can be compared
        tree = None
    if tree is None:
        with path.open("rb") as file:
            return {"": hashlib.file_digest(file, "sha256").hexdigest()}
    known: dict[int, str] = {}
    parts = {where: _digest(value, known) for where, value in _leaves(tree, "")}
    return parts if len(parts) <= _PARTS_MAX else {"": _digest(tree, known)}


def _read_tree(path: Path) -> Any:
    """None: it is no pickle."""
    if zipfile.is_zipfile(path):
        return _read_archive(path)
    with path.open("rb") as file:
        if file.read(1) != b"\x80":
            return None
        file.seek(0)
        tree = _Unpickler(file).load()
        return None if file.read(1) else tree


def _read_archive(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            return None
        folder = pickles[0].removesuffix("data.pkl")

        def digest_of(key: str) -> str:
            with archive.open(f"{folder}data/{key}") as file:
                digest = hashlib.sha256()
                while data := file.read(1 << 20):
                    digest.update(data)
                return digest.hexdigest()

        return _Unpickler(io.BytesIO(archive.read(pickles[0])), digest_of).load()


class _Made:
    """Stands for an object: what it would have been made of."""

    def __new__(cls, *args: Any) -> _Made:
        made = super().__new__(cls)
        made.__dict__["parts"] = list(args)
        return made

    def __init__(self, *args: Any) -> None:
        """Everything is in `parts`."""

    def __setstate__(self, state: Any) -> None:
        self.__dict__["parts"].append(state)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__["parts"].append((key, value))

    def append(self, item: Any) -> None:
        self.__dict__["parts"].append(item)

    add = append


class _Mapping(dict[Any, Any]):
    """Stands for a dictionary with attributes."""

    def __init__(self, *_: Any) -> None:
        super().__init__()


class _Unpickler(pickle.Unpickler):
    """Makes stand-ins. digest_of: of a tensor's data, by its key."""

    def __init__(self, file: BinaryIO | io.BytesIO, digest_of: Any = str) -> None:
        super().__init__(file)
        self._digest_of = digest_of
        self._kinds: dict[str, type] = {}

    def find_class(self, module: str, name: str) -> type:
        if module in ("collections", "builtins") and name in _MAPPINGS:
            return _Mapping
        return self._kinds.setdefault(f"{module}.{name}", type(f"{module}.{name}", (_Made,), {}))

    def persistent_load(self, pid: Any) -> Any:
        word, kind, key, _, length = pid
        return word, kind, length, self._digest_of(key)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Values that are no containers, with their paths."""
    if isinstance(value, dict) and value and path.count(".") < 8:
        for key, each in value.items():
            yield from _leaves(each, f"{path}.{key}" if path else str(key))
    elif type(value) in (list, tuple) and value and path.count("[") < 8:
        for at, each in enumerate(value):
            yield from _leaves(each, f"{path}[{at}]")
    else:
        yield path, value


def _digest(value: Any, known: dict[int, str]) -> str:
    """known: of objects that were seen, by `id`."""
    found = known.get(id(value))
    if found is not None:
        return found
    known[id(value)] = "itself"
    kind, parts = type(value).__name__, _parts(value)
    text = repr(value) if parts is None else ",".join(_digest(each, known) for each in parts)
    known[id(value)] = digest = hashlib.sha256(f"{kind}({text})".encode()).hexdigest()
    return digest


def _parts(value: Any) -> list[Any] | None:
    """None: it has none."""
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in item]
    if isinstance(value, _Made):
        return list(value.__dict__["parts"])
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    return list(value) if isinstance(value, (list, tuple)) else None


def unequal_parts(left: Mapping[str, str], right: Mapping[str, str]) -> list[str]:
    """The paths of values that differ, or that only one of two files has; those of a whole file are left
    out."""
    paths = [*left, *(path for path in right if path not in left)]
    return [path for path in paths if path and left.get(path) != right.get(path)]
