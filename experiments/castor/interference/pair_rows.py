"""Measured pairs from CSV: the schema of the public tables, and of what a cluster writes about its own pairs.

Rule: what was measured while sharing is a label or nothing. A column becomes a feature only if the table
below says so; `co*`, `norm*`, `xi*` and `pair_*` never do. A column that is missing is a missing value; a
cell that cannot be read is an error that names its line.

| column (N = 1, 2) | meaning |
| --- | --- |
| xiN | the label: iteration time shared / alone; else 1 / normN. One of the two may be empty |
| normN | the label as speed: shared / alone |
| feasible | 0: the pair did not run; the row is left out |
| modelN | who: to keep pairs apart when judging, never a feature. Else `pair`, as `A+B` |
| batchN, ampN, soloN (steps/s), soloN_NAME | features; NAME is a word of `features.VOCABULARY` |
| gpu_type | of the device; noted, never a feature |
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from cotenant.controller.domain import csv_cells
from cotenant.controller.models.interference.features import SWITCHES, VOCABULARY, Matrix
from cotenant.controller.training import pair_name

TEXT_BYTES_MAX: Final = 256 * 1024 * 1024
LABELS: Final = frozenset(
    (*(f"{name}{n}" for name in ("xi", "norm", "co", "model", "dataset") for n in (1, 2)), "feasible", "pair")
)
KNOWN: Final = frozenset((*LABELS, "gpu_type", "count1", "count2"))
GZIP_MAGIC: Final = b"\x1f\x8b"

LICENCES: Final[dict[str, str]] = {
    "lucid_": "S-Lab License 1.0, NON-COMMERCIAL",
    "gavel_": "MIT (stanford-futuredata/gavel)",
}
"""Of public tables, by how their file's name starts."""


class PairsProblem(ValueError):
    """A file that cannot be used; the text says which line, and what is wrong."""


class PairRows(msgspec.Struct, frozen=True, kw_only=True):
    """The measured rows of one or several files."""

    names: tuple[str, ...]
    """Columns of `first` and `second`, in the vocabulary's order."""
    first: Matrix
    """[n, len(names)]: job 1 alone; NaN where missing."""
    second: Matrix
    xi: npt.NDArray[np.float64]
    """[n, 2]; NaN where only the other was measured."""
    groups: tuple[str, ...]
    """Unordered pair of model names; empty where the file does not say."""
    models: tuple[tuple[str, str], ...]
    types: tuple[str, ...]
    """Of the devices; empty where the file does not say."""
    infeasible: int = 0
    unlabelled: int = 0
    """Rows without a measured ratio."""
    ignored: tuple[str, ...] = ()
    """Columns that mean nothing to us."""
    name: str = ""
    sha256: str = ""
    licence: str = ""

    def __len__(self) -> int:
        return len(self.xi)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """The GPU types that occur in the rows, sorted."""
        return tuple(sorted({*self.types} - {""}))


def read(data: bytes, name: str, licence: str = "") -> PairRows:
    """The pairs of a file's bytes, gzip'd or plain.

    Raises:
        PairsProblem: not such a file; no measured pair in it.
    """
    reader = csv.reader(io.StringIO(_text(data, name)), strict=True)
    try:
        header = next(reader, [])
        columns = _header(header, name)
        rows = list(_rows(reader, header, columns, name))
    except csv.Error as error:
        raise PairsProblem(f"{name}: line {reader.line_num}: {error}") from None
    kept = [row for row in rows if row.feasible and not all(map(math.isnan, row.xi))]
    if not kept:
        raise PairsProblem(f"{name}: no measured pair in {len(rows)} rows")
    names = tuple(name for name in VOCABULARY if any(name in row.first or name in row.second for row in kept))
    infeasible = sum(1 for row in rows if not row.feasible)
    return PairRows(
        names=names,
        first=_matrix([row.first for row in kept], names),
        second=_matrix([row.second for row in kept], names),
        xi=np.array([row.xi for row in kept]),
        groups=tuple(pair_name(*row.models) for row in kept),
        models=tuple(row.models for row in kept),
        types=tuple(row.gpu_type for row in kept),
        infeasible=infeasible,
        unlabelled=len(rows) - infeasible - len(kept),
        ignored=tuple(column for column in header if column not in columns and not _is_known(column)),
        name=name,
        sha256=hashlib.sha256(data).hexdigest(),
        licence=licence or next((text for start, text in LICENCES.items() if name.startswith(start)), ""),
    )


def together(parts: Sequence[PairRows]) -> PairRows:
    """All rows of several files; what one of them lacks is missing there."""
    names = tuple(name for name in VOCABULARY if any(name in part.names for part in parts))
    return PairRows(
        names=names,
        first=np.concatenate([select_columns(part.first, part.names, names) for part in parts]),
        second=np.concatenate([select_columns(part.second, part.names, names) for part in parts]),
        xi=np.concatenate([part.xi for part in parts]),
        groups=tuple(group for part in parts for group in part.groups),
        models=tuple(models for part in parts for models in part.models),
        types=tuple(each for part in parts for each in part.types),
        name=" + ".join(part.name for part in parts),
    )


def part(pairs: PairRows, keep: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> PairRows:
    """Some of the rows: a mask, or their numbers."""
    rows = [int(row) for row in np.arange(len(pairs))[keep]]
    return msgspec.structs.replace(
        pairs,
        first=pairs.first[rows],
        second=pairs.second[rows],
        xi=pairs.xi[rows],
        groups=tuple(pairs.groups[row] for row in rows),
        models=tuple(pairs.models[row] for row in rows),
        types=tuple(pairs.types[row] for row in rows),
    )


def select_columns(matrix: Matrix, names: tuple[str, ...], wanted: tuple[str, ...]) -> Matrix:
    """The rows of `matrix` with the columns `wanted`: NaN where there is nothing."""
    result = np.full((len(matrix), len(wanted)), np.nan, np.float32)
    for place, name in enumerate(wanted):
        if name in names:
            result[:, place] = matrix[:, names.index(name)]
    return result


# --- Reading -----------------------------------------------------------------------------------------


class _Row(NamedTuple):
    first: dict[str, float]
    second: dict[str, float]
    xi: tuple[float, float]
    models: tuple[str, str]
    gpu_type: str
    feasible: bool


def _text(data: bytes, name: str) -> str:
    try:
        if data[:2] == GZIP_MAGIC:
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(TEXT_BYTES_MAX + 1)
        if len(data) > TEXT_BYTES_MAX:
            raise PairsProblem(f"{name}: more than {TEXT_BYTES_MAX} bytes; is it a table of pairs?")
        return data.decode("utf-8-sig")
    except (gzip.BadGzipFile, zlib.error, EOFError, UnicodeDecodeError) as error:
        raise PairsProblem(f"{name}: not a CSV file, gzip'd or plain ({error})") from None


def _header(header: Sequence[str], name: str) -> Mapping[str, tuple[int, str]]:
    """Column -> (which job, which feature)."""
    twice = sorted({column for column in header if header.count(column) > 1})
    if twice:
        raise PairsProblem(f"{name}: line 1: the column {twice[0]!r} is there twice")
    if not any(f"{label}{n}" in header for label in ("xi", "norm") for n in (1, 2)):
        raise PairsProblem(
            f"{name}: line 1: a table of pairs needs xi1 and xi2 (or norm1 and norm2), "
            f"got {', '.join(header[:8]) or 'nothing'}"
        )
    return {column: place for column in header if (place := _feature(column)) is not None}


def _feature(column: str) -> tuple[int, str] | None:
    for n in (1, 2):
        if column == f"batch{n}":
            return n, "batch"
        if column == f"amp{n}":
            return n, "amp"
        if column == f"solo{n}":
            return n, "steps_per_s"
        if column.startswith(f"solo{n}_") and column.removeprefix(f"solo{n}_") in VOCABULARY:
            return n, column.removeprefix(f"solo{n}_")
    return None


def _is_known(column: str) -> bool:
    return column in KNOWN or column.startswith("pair_")


def _rows(
    reader: Iterator[list[str]], header: Sequence[str], columns: Mapping[str, tuple[int, str]], name: str
) -> Iterator[_Row]:
    for cells in reader:
        line: int = reader.line_num  # type: ignore[attr-defined]
        if not cells:
            continue
        if len(cells) != len(header):
            raise PairsProblem(f"{name}: line {line}: {len(cells)} cells for {len(header)} columns")
        row = dict(zip(header, [csv_cells.as_read(cell.strip()) for cell in cells], strict=True))
        jobs: tuple[dict[str, float], dict[str, float]] = ({}, {})
        for column, (n, feature) in columns.items():
            if row[column]:
                jobs[n - 1][feature] = _value(row[column], column, f"{name}: line {line}", feature)
        for job in jobs:
            _complete(job)
        yield _Row(
            first=jobs[0],
            second=jobs[1],
            xi=(_ratio(row, 1, f"{name}: line {line}"), _ratio(row, 2, f"{name}: line {line}")),
            models=_models(row),
            gpu_type=row.get("gpu_type", ""),
            feasible=_feasible(row.get("feasible", ""), f"{name}: line {line}"),
        )


def _value(text: str, column: str, where: str, feature: str) -> float:
    value = _number(text, column, where)
    if feature in SWITCHES and value not in (0.0, 1.0):
        raise PairsProblem(f"{where}: {column} must be 0 or 1, got {text!r}")
    if value < 0.0:
        raise PairsProblem(f"{where}: {column} must not be negative, got {text!r}")
    return value


def _number(text: str, column: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.inf
    # Beyond a float32 it would be infinite for the model.
    if math.isnan(value) or abs(value) > float(np.finfo(np.float32).max):
        raise PairsProblem(f"{where}: {column} must be a number (or empty), got {text!r}")
    return value


def _complete(job: dict[str, float]) -> None:
    """Throughput in steps and in samples are the same thing where the batch is known. In place."""
    batch = job.get("batch")
    if batch and "samples_per_s" not in job and "steps_per_s" in job:
        job["samples_per_s"] = job["steps_per_s"] * batch
    elif batch and "steps_per_s" not in job and "samples_per_s" in job:
        job["steps_per_s"] = job["samples_per_s"] / batch


def _ratio(row: Mapping[str, str], n: int, where: str) -> float:
    """NaN where it was not measured."""
    for column, invert in ((f"xi{n}", False), (f"norm{n}", True)):
        if text := row.get(column, ""):
            value = _number(text, column, where)
            if value > 0.0:
                return 1.0 / value if invert else value
            if row.get("feasible") != "0":
                raise PairsProblem(f"{where}: {column} must be above 0, got {text!r}")
    return math.nan


def _models(row: Mapping[str, str]) -> tuple[str, str]:
    first, second = row.get("model1", ""), row.get("model2", "")
    if not (first and second):
        first, _, second = row.get("pair", "").partition("+")
    return first, second


def _feasible(text: str, where: str) -> bool:
    if text not in ("", "0", "1"):
        raise PairsProblem(f"{where}: feasible must be 0 or 1, got {text!r}")
    return text != "0"


def _matrix(jobs: Sequence[Mapping[str, float]], names: tuple[str, ...]) -> Matrix:
    values = [[job.get(name, math.nan) for name in names] for job in jobs]
    return np.array(values, np.float32).reshape(len(jobs), len(names))
