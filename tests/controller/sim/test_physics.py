"""Tables of measured pairs: what is in them, and what a world does where they say nothing."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from cotenant.controller.sim.world.physics import BUNDLED, PairData, Physics, pair_data

SHARED = Path(__file__).resolve().parents[4] / "shared" / "interference" / "gavel_pairs.csv.gz"
HEADER = "gpu_type,model1,batch1,model2,batch2,xi1,xi2\n"


def table(*rows: tuple[str, str, float, float]) -> PairData:
    return PairData(name="by hand", rows=rows)


def test_a_measured_pair_has_its_own_ratios_one_for_each_side() -> None:
    ratios = table(("a", "b", 1.5, 2.0)).ratios(("a", "b"))
    assert (ratios[0][1], ratios[1][0]) == (1.5, 2.0)


def test_a_model_without_a_batch_size_is_the_mean_over_them() -> None:
    data = table(("a:1", "b:8", 1.0, 2.0), ("a:2", "b:8", 3.0, 4.0))
    ratios = data.ratios(("a", "b", "a:2"))
    assert (ratios[0][1], ratios[1][0]) == (2.0, 3.0)
    assert (ratios[2][1], ratios[1][2]) == (3.0, 4.0)


def test_a_missing_pair_takes_the_mean_of_what_is_known_of_its_models() -> None:
    data = table(("a", "b", 1.5, 2.0), ("c", "b", 3.0, 4.0))
    ratios = data.ratios(("a", "c"))
    # a beside anybody: 1.5; anybody beside c: 4.0.
    assert ratios[0][1] == pytest.approx((1.5 + 4.0) / 2)
    assert ratios[1][0] == pytest.approx((3.0 + 2.0) / 2)


def test_an_unknown_model_goes_by_its_partner_and_two_by_the_table() -> None:
    data = table(("a", "b", 1.5, 2.0), ("a", "c", 2.5, 4.0))
    ratios = data.ratios(("a", "unknown"))
    assert ratios[0][1] == pytest.approx(2.0)  # How a fares.
    assert ratios[1][0] == pytest.approx(3.0)  # How others fare beside a.
    assert ratios[1][1] == ratios[-1][-1] == pytest.approx((1.5 + 2.0 + 2.5 + 4.0) / 4)


@pytest.mark.parametrize("name", BUNDLED)
def test_every_ratio_of_a_bundled_table_slows_or_leaves_alone(name: str) -> None:
    data = pair_data(name)
    assert data is not None
    assert {"resnet50", "lstm", "a3c"} <= set(data.models())
    assert min(min(row) for row in data.ratios(data.models())) >= 1.0


def test_bundled_tables_are_what_was_measured() -> None:
    if not SHARED.exists():
        pytest.skip("the shared measurements are not here")
    with gzip.open(SHARED, "rt") as lines:
        rows = [row for row in csv.DictReader(lines) if row["feasible"] == "1"]
    for name in BUNDLED:
        data = pair_data(name)
        assert data is not None
        here = [row for row in rows if row["gpu_type"] == name.removeprefix("gavel-")]
        assert [row[2:] for row in data.rows] == [(float(r["xi1"]), float(r["xi2"])) for r in here]


def test_without_a_table_there_is_none() -> None:
    assert pair_data("none") is None


def test_a_file_is_read_zipped_or_not_and_ratios_below_one_are_noise(tmp_path: Path) -> None:
    text = HEADER + "v100,a,,b,8,0.9,2.0\nv100,a,,c,,,\n"
    (tmp_path / "pairs.csv").write_text(text)
    (tmp_path / "pairs.csv.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("pairs.csv", "pairs.csv.gz"):
        data = pair_data(str(tmp_path / name))
        assert data is not None
        assert data.rows == (("a", "b:8", 1.0, 2.0),)


def test_of_a_file_with_several_gpu_types_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(HEADER + "v100,a,,b,,1.1,1.2\nk80,a,,b,,2.1,2.2\n")
    with pytest.raises(ValueError, match="several GPU types; name one"):
        pair_data(str(path))
    data = pair_data(f"{path}:k80")
    assert data is not None
    assert data.rows == (("a", "b", 2.1, 2.2),)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"model1,model2\na,b\n", "line 1: a table of pairs needs the columns batch1, batch2, xi1, xi2"),
        (HEADER.encode(), "no measured pair"),
        (HEADER.encode() + b"v100,a,,b,,1.5,fast\n", "line 2: .*positive number, got 'fast'"),
        (HEADER.encode() + b"v100,a,,b,,1.5,nan\n", "line 2: .*positive number, got 'nan'"),
        (HEADER.encode() + b"v100,a,,b,,1.5\n", "no measured pair"),
        (b"\x1f\x8bnot gzip", "not a CSV file"),
        (b"\xff\xfe\x00", "not a CSV file"),
        (b"", "line 1: a table of pairs needs the columns"),
    ],
)
def test_a_bad_table_is_refused_with_the_place(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=says):
        pair_data(str(path))


def test_a_table_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match=r"no pair table 'gavel-h100'.*gavel-v100.*none"):
        pair_data("gavel-h100")


def test_times_of_a_world_are_not_negative() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        Physics(kill_s=-1.0)
