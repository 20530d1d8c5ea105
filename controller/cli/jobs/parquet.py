"""Writes ended jobs as a Parquet file. Rule: the only module that imports pyarrow (extra `parquet`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final

from cotenant.controller.present import screen
from cotenant.controller.present.past_columns import PAST_COLUMNS, ColumnKind
from cotenant.controller.present.problem import Problem
from cotenant.controller.system.files import output
from cotenant.controller.wire import clients as wire

HINT: Final = "pip install '.[parquet]' in the source folder"
TOLD_AFTER_S: Final = 2.0


def write_parquet(replies: Iterator[wire.PastJobs], out: str) -> None:
    """Writes one row group for each page of jobs, so that one page is in memory. A file appears when it is
    whole.

    Raises:
        Problem: pyarrow is missing, or nothing may be written there.
    """
    if find_spec("pyarrow") is None:
        raise Problem("failed", "-o parquet needs pyarrow, which is not installed", HINT)
    try:
        with output(Path(out)) as beside, beside.open("wb") as file:
            _write(replies, file)
    except OSError as error:
        raise Problem(
            "failed", f"{out} cannot be written: {error.strerror}", "choose another --out"
        ) from None


def _write(replies: Iterator[wire.PastJobs], file: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types: dict[ColumnKind, Any] = {
        "text": pa.string(),
        "words": pa.list_(pa.string()),
        "whole": pa.int64(),
        "number": pa.float64(),
        "time": pa.timestamp("us", tz="UTC"),
    }
    fields = [
        pa.field(c.name, types[c.kind], metadata={"unit": c.unit, "meaning": c.meaning}) for c in PAST_COLUMNS
    ]
    schema, rows, told_s = pa.schema(fields), 0, time.monotonic()
    with pq.ParquetWriter(pa.PythonFile(file, mode="w"), schema) as writer:
        for reply in replies:
            columns = {
                column.name: [_typed(column.kind, column.value(job)) for job in reply.jobs]
                for column in PAST_COLUMNS
            }
            writer.write_table(pa.table(columns, schema=schema))
            rows += len(reply.jobs)
            if reply.next and time.monotonic() - told_s > TOLD_AFTER_S:
                told_s = time.monotonic()
                screen.tell(f"{rows} jobs written, more to come")


def _typed(kind: ColumnKind, value: Any) -> Any:
    if value is None:
        return None
    if kind == "time":
        return datetime.fromisoformat(value)
    return list(map(str, value)) if kind == "words" else str(value) if kind == "text" else value
