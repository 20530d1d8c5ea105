"""`history -o csv` and `-o parquet`: the documented columns, typed, and read back by the real library."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from cotenant.controller.present.past_columns import PAST_COLUMNS
from cotenant.controller.wire import clients as wire

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant, StandIn

PAGE = Path(__file__).resolve().parents[3] / "docs/history.md"


def past(replies: ModuleType, **more: Any) -> wire.PastJobView:
    fields = msgspec.structs.asdict(replies.done(**more))
    return wire.PastJobView(
        **fields, attempts=2, held_device_s=7200.0, shared_device_s=360.0, lost_device_s=0.0
    )


def two_pages(controller: StandIn, replies: ModuleType) -> None:
    def answer(asked: wire.ListPastJobs) -> wire.PastJobs:
        job = past(replies, job_id="2" if asked.after else "1", loss=None if asked.after else 0.5)
        of = {"now": replies.NOW, "since": None, "forgotten_jobs": 0, "next": 0 if asked.after else 1}
        return wire.PastJobs(request_id=0, jobs=(job,), **of)

    controller.says(wire.ListPastJobs, answer)


def test_the_page_has_the_columns_of_the_code() -> None:
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert [(name[3:-1], kind, unit, meaning[:-2]) for name, kind, unit, meaning in rows] == [
        (each.name, each.kind, each.unit, each.meaning) for each in PAST_COLUMNS
    ]


def test_columns_are_fields_of_the_json() -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(wire.PastJobView)}
    assert {each.name for each in PAST_COLUMNS} <= fields


def test_csv_has_the_columns(controller: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    two_pages(controller, replies)
    first, second = csv.DictReader(io.StringIO(cotenant("history", "-o", "csv").out))
    assert list(first) == ["schema", *(each.name for each in PAST_COLUMNS)]
    assert (first["job"], second["job"], first["loss"], second["loss"]) == ("1", "2", "0.5", "")
    assert (first["schema"], first["held_device_s"]) == ("past-job/1", "7200.0")


def test_csv_of_others_names_is_not_computed(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    job = past(replies, job_id="1", name="=1+1", loss=-0.5)
    page = wire.PastJobs(request_id=0, jobs=(job,), now=replies.NOW, since=None, forgotten_jobs=0, next=0)
    controller.says(wire.ListPastJobs, page)
    (row,) = csv.DictReader(io.StringIO(cotenant("history", "-o", "csv").out))
    assert (row["name"], row["loss"]) == ("'=1+1", "-0.5")


def test_parquet_is_typed_and_has_a_row_group_for_each_page(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")
    two_pages(controller, replies)
    out = tmp_path / "jobs.parquet"
    assert cotenant("history", "-o", "parquet", "--out", str(out)).code == 0
    assert parquet.ParquetFile(out).num_row_groups == 2
    table = parquet.read_table(out)
    assert table.column_names == [each.name for each in PAST_COLUMNS]
    assert table.schema.field("held_device_s").metadata[b"unit"] == b"device-s"
    first, second = table.to_pylist()
    assert (first["loss"], second["loss"], first["exit_code"]) == (0.5, None, past(replies).exit_code)
    assert first["submitted_at"] == datetime.fromisoformat(past(replies).submitted_at).astimezone(UTC)
    assert isinstance(first["devices"], list) and first["state"] == "done"
    assert not list(tmp_path.glob("*.part-*"))


def test_parquet_is_refused_where_it_would_be_of_no_use(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")
    two_pages(controller, replies)
    refused = cotenant("history", "-o", "parquet", "--out", str(tmp_path / "no/jobs.parquet"))
    assert "cannot be written: No such file or directory" in refused.err
    for words in (("--out", "x"), ("-o", "parquet")):
        assert "-o parquet and --out FILE go together" in cotenant("history", *words).err
