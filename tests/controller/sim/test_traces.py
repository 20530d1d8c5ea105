"""Traces: what `read` gives for bundled names and files in the schema, and what it says to bad ones."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cotenant.controller.sim.traces.reading import FORMATS, parse, read
from cotenant.controller.sim.traces.schema import read_schema, schema_text, write_csv
from cotenant.controller.sim.traces.table import content, decode_utf_8, unpack_gzip
from cotenant.controller.sim.traces.trace import Labels, Trace, TraceProblem, describe, offered_load
from cotenant.controller.trace_names import NAMES, PHILLY_VCS

SHARED = Path(__file__).resolve().parents[4] / "shared" / "traces"
HEADER = "job_id,submit_time_s,duration_s,gpus,user,vc,gpu_type,state,type,pods,gpus_per_pod,model"
JOBS = f"""{HEADER}
a,0,10,1,ann,v1,A100,ok,hp,,,bert
b,5,20.5,0.5,bob,v2,,failed,spot,,,
c,5,30,8,ann,v1,A100,ok,hp,,,bert
"""
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the public traces are not beside this checkout"
)


def problem(text: str, **options: object) -> TraceProblem:
    with pytest.raises(TraceProblem) as caught:
        parse(text, name="jobs.csv", **options)  # type: ignore[arg-type]
    return caught.value


def same(one: Trace, other: Trace) -> None:
    """The same jobs, whatever the traces are called."""
    for name in ("submit_s", "duration_s", "gpus", "hp"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for name in ("user", "vc", "organisation", "model", "gpu_type", "state"):
        assert getattr(one, name).texts() == getattr(other, name).texts(), name
    assert one.clock_per_vc == other.clock_per_vc


# The schema.


def test_a_table_in_the_schema_is_read_column_by_column() -> None:
    trace = parse(JOBS, name="jobs.csv")
    assert trace.job_ids == ("a", "b", "c")
    assert trace.submit_s.tolist() == [0.0, 5.0, 5.0]
    assert trace.duration_s.tolist() == [10.0, 20.5, 30.0]
    assert trace.gpus.tolist() == [1.0, 0.5, 8.0]
    assert trace.user.texts() == ["ann", "bob", "ann"]
    assert trace.vc.counts() == {"v1": 2, "v2": 1}
    assert trace.gpu_type.texts() == ["A100", "", "A100"]
    assert trace.model.texts() == ["bert", "", "bert"]
    assert trace.hp.tolist() == [True, False, True]
    assert not trace.synthetic and not trace.clock_per_vc
    assert trace.excluded == {} and trace.notes == ()


def test_three_columns_are_enough_in_any_order_and_others_are_passed_over() -> None:
    trace = parse("colour,gpus,submit_time_s,duration_s\nred,2,3,4\n", name="jobs.csv")
    assert (trace.gpus[0], trace.submit_s[0], trace.duration_s[0]) == (2.0, 3.0, 4.0)
    assert trace.job_ids == () and not trace.user.known


def test_rows_that_are_no_jobs_are_left_out_and_counted_by_reason() -> None:
    trace = parse(
        "submit_time_s,duration_s,gpus\n0,5,1\n1,0,1\n2,5,0\n3,,1\n,5,1\n4,5,\n5,0,0\n6,7,2\n",
        name="jobs.csv",
    )
    assert trace.submit_s.tolist() == [0.0, 6.0]
    assert trace.excluded == {
        "zero duration": 1,
        "no GPU": 2,
        "never ended, or no duration": 1,
        "no submission time": 1,
        "no GPU count": 1,
    }


def test_rows_out_of_order_are_put_in_order_and_the_user_is_told_where() -> None:
    trace = parse(
        "job_id,submit_time_s,duration_s,gpus\na,9,1,1\nb,4,1,1\nc,4,1,1\nd,7,1,1\n", name="jobs.csv"
    )
    assert trace.job_ids == ("b", "c", "d", "a"), "equal times keep their order"
    (note,) = trace.notes
    assert "above them: 1 (first: line 3)" in note


def test_times_that_restart_in_every_vc_are_several_clocks() -> None:
    trace = parse(
        "submit_time_s,duration_s,gpus,vc\n0,1,1,x\n9,1,1,x\n0,1,1,y\n3,1,1,y\n5,1,2,y\n", name="t.csv"
    )
    assert trace.clock_per_vc
    with pytest.raises(TraceProblem, match="2 VCs, each with its own clock") as caught:
        trace.single_clock_trace()
    assert caught.value.hint == "choose one with --vc: y (3 jobs), x (2 jobs)"
    assert trace.vc_trace("y").submit_s.tolist() == [0.0, 3.0, 5.0]
    assert not trace.vc_trace("y").clock_per_vc and trace.vc_trace("y").name == "t.csv/y"


def test_blocks_of_vcs_on_one_clock_are_one_clock() -> None:
    trace = parse("submit_time_s,duration_s,gpus,vc\n0,1,1,x\n9,1,1,x\n1,1,1,y\n3,1,1,y\n", name="t.csv")
    assert not trace.clock_per_vc and trace.vc.texts() == ["x", "y", "y", "x"]


def test_a_vc_that_is_not_there_is_answered_with_those_that_are() -> None:
    trace = parse(JOBS, name="jobs.csv")
    with pytest.raises(TraceProblem, match=r"jobs\.csv has no VC v3") as caught:
        trace.vc_trace("v3")
    assert "v1" in caught.value.hint
    with pytest.raises(TraceProblem) as caught:
        parse("submit_time_s,duration_s,gpus\n0,1,1\n", name="t.csv").vc_trace("x")
    assert caught.value.hint == "it has no column vc: leave --vc out"


BAD = {
    "a missing column is named, with the nearest that is there": (
        "submit_time,duration_s,gpus\n1,1,1\n", "jobs.csv:1: has no column submit_time_s", "submit_time?",
    ),
    "a word for a number": ("submit_time_s,duration_s,gpus\n0,1,1\n0,ten,1\n",
                            "jobs.csv:3: column duration_s: 'ten' is not a number", ""),
    "NaN": ("submit_time_s,duration_s,gpus\n0,nan,1\n", "column duration_s: 'nan' is not a number",
            "empty field"),
    "infinity": ("submit_time_s,duration_s,gpus\ninf,1,1\n", "'inf' is not a number", ""),
    "more than a float holds": ("submit_time_s,duration_s,gpus\n1e999,1,1\n", "'1e999' is not a number", ""),
    "an absurd number": ("submit_time_s,duration_s,gpus\n0,1e300,1\n", "'1e300' is too large", ""),
    "an underscore": ("submit_time_s,duration_s,gpus\n1_0,1,1\n", "'1_0' is not a number", ""),
    "digits of another script": ("submit_time_s,duration_s,gpus\n٣,1,1\n", "'٣' is not a number", ""),
    "a negative duration": ("submit_time_s,duration_s,gpus\n\n0,-1,1\n",
                            "jobs.csv:3: column duration_s: '-1' is negative", "0 or more"),
    "negative GPUs": ("submit_time_s,duration_s,gpus\n0,1,-8\n", "column gpus: '-8' is negative", ""),
    "a row that is cut off": ("submit_time_s,duration_s,gpus\n0,1,1\n0,1\n",
                              "jobs.csv:3: has 2 fields, the header has 3", "cut off?"),
    "a comma too many": ("submit_time_s,duration_s,gpus\n0,1,1,1\n", "has 4 fields", "quotes"),
    "a column twice": ("submit_time_s,duration_s,gpus,gpus\n0,1,1,1\n", "has two columns 'gpus'", ""),
    "a job id twice": ("job_id,submit_time_s,duration_s,gpus\na,0,1,1\na,1,1,1\n",
                       "jobs.csv:3: column job_id: 'a' is there twice, first in line 2", "its own"),
    "no rows": ("submit_time_s,duration_s,gpus\n", "no job is left of 0 rows", ""),
    "no rows that are jobs": ("submit_time_s,duration_s,gpus\n0,0,1\n0,1,0\n",
                              "no job is left of 2 rows (no GPU: 1, zero duration: 1)", ""),
    "all that is missing is named at once": (
        "submit_time,duration,gpu_count\n1,1,1\n",
        "jobs.csv:1: has no columns submit_time_s, duration_s, gpus",
        "did you mean submit_time for submit_time_s, duration for duration_s?; it has",
    ),
    "prose": ("Dear colleague\n\nplease find attached\n", "jobs.csv:1: is in no format", "header"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_place_cause_and_advice(name: str) -> None:
    text, message, hint = BAD[name]
    found = problem(text)
    assert message in found.message
    assert hint in found.hint


def test_a_format_that_is_not_known_is_answered_with_the_nearest() -> None:
    assert problem(JOBS, format="saccct").message.endswith("is in no format that is known")
    with pytest.raises(TraceProblem, match="heliox is not a format") as caught:
        read("x.csv", format="heliox")
    assert caught.value.hint == "did you mean helios?"


# Files.


def test_gzip_is_recognised_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_bytes(gzip.compress(JOBS.encode()))
    assert len(read(tmp_path / "jobs.csv")) == 3
    assert read(tmp_path / "jobs.csv").source == str(tmp_path / "jobs.csv")


FILES = {
    "empty": ("e.csv", b"", "is empty"),
    "blank": ("e.csv", b" \n\n", "is empty"),
    "empty gzip": ("e.csv.gz", gzip.compress(b""), "is empty"),
    "not gzip": ("e.csv.gz", JOBS.encode(), "is named .gz but does not hold gzip data"),
    "cut gzip": ("e.csv.gz", gzip.compress(random.Random(1).randbytes(4000))[:900], "ends in the middle"),
    "broken gzip": ("e.csv.gz", gzip.compress(JOBS.encode())[:20] + b"\xff" * 60, "is broken gzip data"),
    "Latin-1": ("e.csv", JOBS.replace("ann", "anné").encode("latin-1"), "e.csv:2: byte 0xe9 is not UTF-8"),
    "UTF-16": ("e.csv", JOBS.encode("utf-16"), "is UTF-16 text"),
    "binary": ("e.csv", b"\x7fELF\0\0\0", "holds a NUL byte"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_text_says_what_it_is(name: str, tmp_path: Path) -> None:
    file, data, message = FILES[name]
    (tmp_path / file).write_bytes(data)
    with pytest.raises(TraceProblem, match=re.escape(message)) as caught:
        read(tmp_path / file)
    assert file in caught.value.message


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_bytes(b"\xef\xbb\xbf" + JOBS.replace("\n", "\r\n").encode())
    same(read(tmp_path / "jobs.csv"), parse(JOBS, name="jobs.csv"))


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceProblem, match="there is no such file") as caught:
        read(tmp_path / "nowhere.csv")
    assert "philly/0e4a51" in caught.value.hint
    with pytest.raises(TraceProblem, match="is a folder"):
        read(tmp_path)
    with pytest.raises(TraceProblem, match="there is no such file"):
        read("a\0b")


def test_a_small_file_that_unpacks_to_too_much_is_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"0" * (1 << 22)))
    with pytest.raises(TraceProblem, match="is larger than 1 MiB"):
        content(tmp_path / "bomb.csv.gz", bytes_max=1 << 20)


# Bundled traces.


def test_every_bundled_trace_is_read_and_names_its_source_and_licence() -> None:
    counts = {name: len(trace) for name in NAMES for trace in (read(name),)}
    assert counts == {
        "philly": 65_011,
        "philly/0e4a51": 2_465,
        "philly/103959": 2_677,
        "philly/51b7ef": 63,
        "philly/6214e9": 51_258,
        "philly/6c71a0": 14_783,
        "philly/b436b2": 9_031,
        "philly/e13805": 938,
        "philly/ed69ec": 1_400,
        "philly/ee9e8c": 5_452,
    }
    trace = read("philly/ee9e8c")
    assert trace.licence == "CC-BY-4.0" and "Jeon" in trace.source and not trace.synthetic
    assert trace.vc.counts() == {"ee9e8c": 5_452} and trace.job_ids[-1] == "ee9e8c-5451"


def test_bundled_numbers_are_those_that_were_published_about_them() -> None:
    """Mean minutes, median seconds, mean GPUs, GPU-hours, mean seconds between arrivals of VC b436b2."""
    row = describe(read("philly/b436b2"), gpus=64)
    assert row["duration_s"]["mean"] / 60 == pytest.approx(329, abs=0.5)
    assert row["duration_s"]["p50"] == pytest.approx(1388, abs=0.5)
    assert row["gpus"]["mean"] == pytest.approx(2.02, abs=0.005)
    assert row["gpu_hours"] == pytest.approx(317_301, abs=0.5)
    assert row["interarrival_s"]["mean"] == pytest.approx(899, abs=0.5)
    assert row["offered_load"] == pytest.approx(317_301 * 3600 / (899.0996 * 9030 * 64), rel=1e-4)


@pytest.mark.parametrize(("name", "near"), [("philly/0e4a5", "philly/0e4a51"), ("philly/helios", "philly")])
def test_a_bundled_name_that_is_wrong_is_answered_with_the_right_ones(name: str, near: str) -> None:
    with pytest.raises(TraceProblem, match="is not a bundled trace") as caught:
        read(name)
    assert near in caught.value.hint


def test_a_bundled_name_wins_over_a_file_unless_the_file_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("philly").write_text(JOBS)
    assert len(read("philly")) == 65_011
    assert len(read("./philly")) == len(read(Path("philly"))) == 3


@needs_shared
def test_bundled_rows_are_the_rows_of_the_public_files() -> None:
    whole = read(SHARED / "philly_by_vc.csv.gz")
    assert whole.clock_per_vc and set(whole.vc.names) == set(PHILLY_VCS) and whole.excluded == {}
    for vc in PHILLY_VCS:
        part = whole.vc_trace(vc)
        same(read(f"philly/{vc}"), part)
        assert read(f"philly/{vc}").job_ids == part.job_ids
    same(read("philly"), read(SHARED / "philly.csv.gz"))


@needs_shared
@pytest.mark.parametrize(
    ("file", "jobs", "clocks"),
    [
        ("helios_venus_sept_vcvGl", 1_452, False),
        ("muri", 8_393, True),
        ("openb_pods", 7_063, False),
        ("alibaba_dlrm_2025", 3_203, False),
        ("alibaba_spot_extreme_jobs", 1_392, False),
    ],
)
def test_public_job_tables_are_read(file: str, jobs: int, clocks: bool) -> None:
    trace = read(SHARED / f"{file}.csv.gz")
    assert (len(trace), trace.clock_per_vc) == (jobs, clocks)
    text = decode_utf_8(unpack_gzip((SHARED / f"{file}.csv.gz").read_bytes(), file), file)
    assert len(trace) + sum(trace.excluded.values()) == text.count("\n") - 1, "every row is a job or counted"


# Describing and writing.


def test_a_description_has_no_nan_and_counts_each_vc() -> None:
    row = describe(parse(JOBS, name="jobs.csv"), gpus=4)
    assert row["jobs"] == 3 and row["hp_jobs"] == 2 and row["users"] == 2
    assert row["states"] == {"ok": 2, "failed": 1}
    assert row["duration_s"]["mean"] == pytest.approx(60.5 / 3)
    assert row["interarrival_s"]["mean"] == 2.5 and row["span_s"] == 5.0
    assert row["offered_load"] == pytest.approx((10 + 10.25 + 240) / (5 * 4))
    assert [(vc["vc"], vc["jobs"]) for vc in row["vcs"]] == [("v1", 2), ("v2", 1)]
    assert row["vcs"][1]["interarrival_s"]["mean"] is None and row["vcs"][1]["offered_load"] is None


def test_several_clocks_have_no_arrival_rate_as_a_whole() -> None:
    trace = parse("submit_time_s,duration_s,gpus,vc\n0,1,1,x\n9,1,1,x\n0,1,1,y\n4,1,1,y\n", name="t.csv")
    row = describe(trace, gpus=1)
    assert row["span_s"] is None and row["interarrival_s"]["mean"] is None and row["offered_load"] is None
    assert offered_load(trace, 1) is None
    assert {vc["vc"]: vc["span_s"] for vc in row["vcs"]} == {"x": 9.0, "y": 4.0}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    trace = parse(JOBS, name="jobs.csv")
    for name in ("out.csv", "out.csv.gz"):
        write_csv(trace, tmp_path / name)
        same(read(tmp_path / name), trace)
    first = (tmp_path / "out.csv.gz").read_bytes()
    write_csv(trace, tmp_path / "out.csv.gz")
    assert (tmp_path / "out.csv.gz").read_bytes() == first
    with pytest.raises(TraceProblem, match="cannot be written"):
        write_csv(trace, tmp_path / "no" / "folder.csv")


seconds = st.floats(0, 1e9) | st.integers(0, 10**9).map(float)
names = st.sampled_from(["", "x", 'quo"te', "com,ma", "line\nbreak", "ü"])


@given(
    jobs=st.lists(
        st.tuples(seconds, seconds.map(lambda s: s + 0.5), st.integers(1, 64), names, names), min_size=1
    )
)
def test_any_trace_survives_writing_and_reading(jobs: list[tuple[float, float, int, str, str]]) -> None:
    submit_s, duration_s, gpus, users, vcs = zip(*sorted(jobs), strict=True)
    n = len(jobs)
    none = Labels.none(n)
    trace = Trace(
        name="drawn",
        source="",
        licence="",
        submit_s=np.array(submit_s),
        duration_s=np.array(duration_s),
        gpus=np.array(gpus, np.float64),
        user=Labels.make(users),
        vc=Labels.make(vcs),
        organisation=none,
        model=none,
        gpu_type=none,
        state=none,
        hp=np.zeros(n, np.bool_),
    )
    same(parse(schema_text(trace), name="again.csv"), trace)


# Whatever the bytes.


def outcome(data: bytes, format: str) -> Trace | TraceProblem:
    """What a user sees; any other exception fails the test."""
    try:
        unzipped = unpack_gzip(data, "f") if data.startswith(b"\x1f\x8b") else data
        return parse(decode_utf_8(unzipped, "f"), name="f", format=format)
    except TraceProblem as found:
        return found


fields = st.sampled_from(
    [
        "0",
        "1",
        "-1",
        "2.5",
        "",
        "nan",
        "1e400",
        "x",
        '"',
        "a|b",
        "2020-01-01 00:00:00",
        "None",
        "é",
        "9" * 400,
    ]
)
headers = st.sampled_from(
    [
        "submit_time_s,duration_s,gpus,vc",
        "job_id,submit_time_s,duration_s,gpus",
        "gpu_num,submit_time,duration,job_id",
        "JobID|Submit|ElapsedRaw|AllocTRES",
        "JobID|Submit|Start|End|ReqTRES",
        "; Version: 2.2",
        '[{"jobid": "a", "attempts": [], "submitted_time":',
    ]
)
lines = st.lists(
    st.tuples(st.sampled_from([",", "|", " ", ";"]), st.lists(fields, max_size=19)).map(
        lambda row: row[0].join(row[1])
    ),
    max_size=6,
)
texts = st.tuples(headers, lines).map(lambda parts: "\n".join((parts[0], *parts[1])).encode())
packed = (st.binary(max_size=60) | texts).map(gzip.compress)
damaged = st.tuples(packed, st.integers(0, 40)).map(lambda pair: pair[0][: len(pair[0]) - pair[1]])


@given(
    data=st.binary(max_size=200) | texts | packed | damaged | st.text(max_size=80).map(str.encode),
    format=st.sampled_from([name for name in FORMATS if name != "pai"]),
)
@example(data=b"[" * 100_000, format="auto")
@example(data=b'[{"attempts": [{"detail": [{"gpus": 3}]}]}]', format="auto")
@example(data=b"submit_time_s,duration_s,gpus\r0,1,1", format="auto")
@example(data=b'"submit_time_s,duration_s,gpus\n0,1,1', format="auto")
@example(data=b"submit_time_s,duration_s,gpus\n1e308,1e308,1e308\n-1e308,1,1", format="auto")
def test_any_bytes_give_a_trace_or_a_problem(data: bytes, format: str) -> None:
    found = outcome(data, format)
    assert isinstance(found, Trace | TraceProblem)
    if isinstance(found, TraceProblem):
        assert found.message
    else:
        assert len(found) > 0 and describe(found, gpus=8)["jobs"] == len(found)


def test_a_trace_with_such_names_is_read_as_it_was_written() -> None:
    text = "job_id,submit_time_s,duration_s,gpus,user\n'=1+1,0,5,1,'@eve\n2,1,0.5,1,ann\n"
    trace = read_schema(text, name="t")
    assert trace.job_ids == ("=1+1", "2") and trace.user.texts()[0] == "@eve"
    again = schema_text(trace)
    assert "\n'=1+1,0,5,1,'@eve," in again
    assert schema_text(read_schema(again, name="t")) == again
