"""Tables of measured pairs: what is read, what is a feature and never a label, and what is refused where."""

from __future__ import annotations

import gzip
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.models.interference.features import VOCABULARY
from cotenant.controller.performance import Indicators, IndicatorStats, Profile
from experiments.castor.interference.pair_rows import PairRows, PairsProblem, read, together
from hwtests import pair_table
from hwtests.jobs import Job

HEAD = "model1,batch1,model2,batch2,xi1,xi2,solo1_gpu_util_pct,solo2_gpu_util_pct"


def table(*lines: str, head: str = HEAD) -> PairRows:
    return read("\n".join((head, *lines, "")).encode(), "t.csv")


def problem(*lines: str, head: str = HEAD) -> str:
    with pytest.raises(PairsProblem) as caught:
        table(*lines, head=head)
    return str(caught.value)


def test_a_row_is_two_jobs_and_two_ratios() -> None:
    pairs = table("b,8,a,,1.5,0.9,40,60")
    assert pairs.names == ("gpu_util_pct", "batch")
    assert pairs.first.tolist() == [[40.0, 8.0]]
    assert pairs.second[0, 0] == 60.0
    assert math.isnan(pairs.second[0, 1])
    assert pairs.xi.tolist() == [[1.5, 0.9]]
    assert (pairs.groups, pairs.models) == (("a+b",), (("b", "a"),))


def test_packed_and_plain_are_the_same() -> None:
    text = f"{HEAD}\na,8,b,8,1.5,0.9,40,60\n".encode()
    plain, packed = read(text, "t.csv"), read(gzip.compress(text), "t.csv.gz")
    assert plain.xi.tolist() == packed.xi.tolist()
    assert plain.sha256 != packed.sha256, "of the file as it lies on the disk"


def test_pairs_that_did_not_run_or_were_not_measured_are_left_out_and_counted() -> None:
    pairs = table(
        "a,8,b,8,1.5,1.2,1", "a,8,c,8,0,0,0", "a,8,d,8,,,1", "a,8,e,8,1.1,,1",
        head="model1,batch1,model2,batch2,xi1,xi2,feasible",
    )  # fmt: skip
    assert (len(pairs), pairs.infeasible, pairs.unlabelled) == (2, 1, 1)
    assert math.isnan(pairs.xi[1, 1]), "one of the two may be missing"


def test_norm_stands_in_for_xi() -> None:
    assert table("a,b,0.5,0.8", head="model1,model2,norm1,norm2").xi.tolist() == [[2.0, 1.25]]
    measured = table("a,b,0.5,3.0,1.0", head="model1,model2,norm1,xi1,xi2")
    assert measured.xi[0, 0] == 3.0, "xi itself goes first"


def test_the_pair_column_stands_in_for_the_models() -> None:
    assert table("b+a,1.5,1.2", head="pair,xi1,xi2").groups == ("a+b",)
    assert table("1.5,1.2", head="xi1,xi2").groups == ("",)


LABELS = (
    "norm1",
    "norm2",
    "co1",
    "co2",
    "pair_gpu_util_pct",
    "pair_mem_mib",
    "feasible",
    "gpu_type",
    "dataset1",
)


def test_nothing_that_was_measured_while_sharing_becomes_a_feature() -> None:
    """The gavel and the lucid table have all of these."""
    plain = table("a,8,b,8,1.5,1.2,40,60")
    more = table("a,8,b,8,1.5,1.2,40,60," + "1," * len(LABELS) + "x", head=f"{HEAD},{','.join(LABELS)},pair")
    assert more.names == plain.names
    assert not {name for name in VOCABULARY if name.startswith(("pair", "co", "norm", "xi"))}
    assert more.ignored == ()


def test_a_column_without_a_meaning_is_named() -> None:
    assert table("a,b,1.5,1.2,7", head="model1,model2,xi1,xi2,solo1_astrology").ignored == (
        "solo1_astrology",
    )


def test_throughput_in_steps_and_in_samples_complete_each_other() -> None:
    pairs = table("a,8,b,,1.5,1.2,2.0,3.0", head="model1,batch1,model2,batch2,xi1,xi2,solo1,solo2")
    assert dict(zip(pairs.names, pairs.first[0].tolist(), strict=True)) == {
        "samples_per_s": 16.0,
        "steps_per_s": 2.0,
        "batch": 8.0,
    }
    assert math.isnan(pairs.second[0, 0])


REFUSED = {
    "no ratios": (("a,b",), "model1,model2", "t.csv: line 1: a table of pairs needs xi1 and xi2"),
    "a column twice": (("1,1,1",), "xi1,xi2,xi1", "t.csv: line 1: the column 'xi1' is there twice"),
    "a short row": (("a,8,b,8,1.5,1.2,40,60", "a,8"), HEAD, "t.csv: line 3: 2 cells for 8 columns"),
    "a word for a ratio": (("a,8,b,8,often,1.2,40,60",), HEAD, "t.csv: line 2: xi1 must be a number"),
    "a ratio of zero": (("a,8,b,8,1.5,0,40,60",), HEAD, "t.csv: line 2: xi2 must be above 0, got '0'"),
    "a word for a feature": (("a,8,b,8,1.5,1.2,40,x",), HEAD, "line 2: solo2_gpu_util_pct must be a number"),
    "an infinite feature": (("a,8,b,8,1.5,1.2,inf,6",), HEAD, "line 2: solo1_gpu_util_pct must be a number"),
    "a NaN in words": (("a,8,b,8,1.5,1.2,nan,6",), HEAD, "line 2: solo1_gpu_util_pct must be a number"),
    "a negative feature": (("a,-8,b,8,1.5,1.2,4,6",), HEAD, "line 2: batch1 must not be negative"),
    "a switch of 2": (("1.5,1.2,2",), "xi1,xi2,amp1", "line 2: amp1 must be 0 or 1, got '2'"),
    "feasible in words": (("1.5,1.2,no",), "xi1,xi2,feasible", "line 2: feasible must be 0 or 1, got 'no'"),
    "nothing measured": (("1.5,1.2,0",), "xi1,xi2,feasible", "t.csv: no measured pair in 1 rows"),
    "an empty file": ((), "", "t.csv: line 1: a table of pairs needs xi1 and xi2"),
    "an open quote": (('a,8,"b,8,1.5,1.2,40,60',), HEAD, "t.csv: line 2"),
}


@pytest.mark.parametrize(("lines", "head", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_file_is_refused_with_its_line(lines: tuple[str, ...], head: str, message: str) -> None:
    assert message in problem(*lines, head=head)


def test_bytes_that_are_no_text_are_refused() -> None:
    for data in (b"\xff\xfe\x00", gzip.compress(b"xi1,xi2\n1,1\n")[:-4], b"\x1f\x8bnonsense"):
        with pytest.raises(PairsProblem, match=r"t\.csv: not a CSV file"):
            read(data, "t.csv")


def test_several_files_are_one_with_holes() -> None:
    both = together(
        [
            table("a,8,b,8,1.5,1.2,40,60"),
            table("c,d,1.1,1.0,5", head="model1,model2,xi1,xi2,solo1_FP32A_mean"),
        ]
    )
    assert both.names == ("gpu_util_pct", "batch", "FP32A_mean")
    assert np.isnan(both.first).tolist() == [[False, False, True], [True, True, False]]
    assert both.groups == ("a+b", "c+d")


@given(st.lists(st.tuples(st.floats(0.01, 100.0), st.floats(0.01, 100.0)), min_size=1, max_size=20))
def test_every_ratio_comes_back_as_it_was_written(ratios: list[tuple[float, float]]) -> None:
    pairs = table(*(f"a,8,b,8,{one!r},{two!r},40,60" for one, two in ratios))
    assert pairs.xi.tolist() == [list(each) for each in ratios]


def test_the_table_that_the_hardware_tests_write_is_read() -> None:
    active = IndicatorStats(mean=0.5, variance=0.01, count=9, period_s=0.5, source="gpm")
    solos = {
        name: pair_table.Solo(
            job=Job(name=name, script="language_model", batch_size=8),
            step_s=0.1,
            load_s=2.0,
            memory_mib=900.0,
            indicators=Indicators(SMACT=active),
            profile=Profile(),
        )
        for name in "ab"
    }
    mean = pair_table.PairMean(models=("a", "b"), mode="mps", xi=(1.25, 1.6), count=2, speed=1.4, benefit=1.1)
    pairs = read(pair_table.table([mean], solos, "fake GPU").encode(), "pairs.csv")
    assert pairs.xi.tolist() == [[1.25, 1.6]]
    assert pairs.groups == ("a+b",)
    assert {"SMACT_mean", "mem_mib", "batch", "amp"} <= set(pairs.names)
