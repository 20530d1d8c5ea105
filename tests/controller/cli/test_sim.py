"""`cotenant sim`: what it prints, in which form, with which exit code."""

from __future__ import annotations

import builtins
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.cli.offline import options as sim_options
from cotenant.controller.cli.offline.sim import windowed_tasks
from cotenant.controller.sim import Scenario, policies_named, tasks
from cotenant.controller.whatif import table as sim_table

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant

SMALL = "philly/51b7ef"
RUN_FIELDS = {
    "policy", "jobs", "finished", "offered_load", "makespan_s", "jct_s", "wait_s", "load_s", "pause_s",
    "rework_s", "preemptions", "futile_preemptions", "aborted_preemptions", "futile_s", "gpu_busy_ratio",
    "sharing_benefit", "shared_jobs", "decision_ms", "events", "wall_s", "cpu_s", "hp", "spot",
}  # fmt: skip


def test_compare_keeps_its_contract(cotenant: Cotenant) -> None:
    result = cotenant("sim", "compare", SMALL, "--policies", "fifo,sjf", "--hosts", "1", "-o", "json")
    assert result.code == 0
    value = json.loads(result.out)
    assert (value["schema"], value["trace"]) == ("sim-compare/1", SMALL)
    assert [run["policy"] for run in value["runs"]] == ["fifo", "sjf"]
    for run in value["runs"]:
        assert set(run) >= RUN_FIELDS
        assert set(run["jct_s"]) == {"mean", "p50", "p95", "p99"}
        assert set(run["futile_s"]) == {"mean", "p50", "p95", "total_gpu_s"}
        assert run["finished"] == run["jobs"] == value["workload"]["jobs"]


def test_every_column_with_a_unit_says_which() -> None:
    """A time in that of its values; what is neither a time nor a count nor a ratio says it in its title."""
    no_unit = {"SLOWDOWN P50", "RHO P95", "JAIN", "BENEFIT", "ETA WIDTH/JCT"}
    no_unit |= {"PREEMPTED", "FUTILE", "ABORTED", "SHARED", "EVENTS", "RESIZED", "PROMISED", "BROKEN"}
    bare = {each.title for each in sim_table.MEASURES if not each.time and ", " not in each.title}
    assert bare == no_unit
    rows = sim_table.rows_of([{"label": "a", "interrupted": False, "seed": 0, "jct_s": {"mean": 90.0}}])
    columns, _ = sim_table.laid_out([row.summaries[0] for row in rows], wide=False)
    assert columns[1].title == "JCT MEAN, min"


def test_compare_is_a_table_for_people(cotenant: Cotenant) -> None:
    result = cotenant("sim", "compare", SMALL, "--hosts", "1")
    about, head, *rows, note, tail = result.out.splitlines()
    assert about.startswith("philly/51b7ef: 63 jobs on 1 x 8 GPUs, offered load")
    assert re.split("  +", head)[:4] == ["POLICY", "JCT MEAN, h", "JCT MEDIAN, h", "JCT P95, h"], (
        "a unit stands behind a comma: MEAN min is no minimum"
    )
    assert [row.split()[0] for row in rows] == ["fifo", "sjf", "srtf"]
    assert sum("*" in row for row in rows) >= 1
    assert note == "* best of its column"
    assert tail == "P95 rests on 4 jobs of 63: do not rank by it"
    assert "\x1b" not in result.out


def test_where_all_are_alike_none_is_marked_and_small_traces_have_their_hours(
    cotenant: Cotenant, tmp_path: Path
) -> None:
    trace = tmp_path / "two.csv"
    trace.write_text("job_id,submit_time_s,duration_s,gpus\na,0,100,1\nb,60,440,2\n")
    compared = cotenant("sim", "compare", str(trace), "--policies", "fifo,sjf")
    assert compared.code == 0 and "best" not in compared.out
    assert "0.27 GPU-hours" in cotenant("sim", "trace", "show", str(trace)).out


def test_several_seeds_have_intervals(cotenant: Cotenant) -> None:
    result = cotenant("sim", "compare", SMALL, "--policies", "fifo", "--seeds", "3", "--hosts", "1")
    assert "means over 3 seeds" in result.out
    assert "±" in result.out
    value = json.loads(cotenant("sim", "compare", SMALL, "--policies", "fifo", "--seeds", "3", "--json").out)
    assert [run["seed"] for run in value["runs"]] == [0, 1, 2]


WINDOWS = ("sim", "compare", SMALL, "--hosts", "1", "--windows", "3", "--window-jobs", "15")


def test_windows_are_compared_with_intervals_over_them(cotenant: Cotenant) -> None:
    result = cotenant(*WINDOWS, "--policies", "fifo,sjf")
    lines = result.out.splitlines()
    assert result.code == 0 and "means over 3 windows (seed 0)" in lines[0]
    (said,) = [line for line in lines if line.startswith("sjf against fifo over 3 windows: JCT x ")]
    assert " to " in said and "bounded slowdown x " in said
    assert "15 jobs count in each window; those before them ran as well" in lines
    value = json.loads(cotenant(*WINDOWS, "--policies", "fifo,sjf", "-o", "json").out)
    assert [(run["window"], run["policy"]) for run in value["runs"]][:3] == [
        (0, "fifo"),
        (0, "sjf"),
        (1, "fifo"),
    ]
    assert value["workload"]["jobs"] == 63
    (paired,) = value["paired"]
    assert (paired["policy"], paired["against"], paired["windows"]) == ("sjf", "fifo", 3)
    for name in ("wait_ratio", "bsld_ratio", "jct_ratio"):
        assert set(paired[name]) == {"mean", "low", "high"}
        assert paired[name]["low"] <= paired[name]["mean"] <= paired[name]["high"]


def test_a_stop_before_anything_was_compared_is_a_stop() -> None:
    def interrupted(tasks: Any, **more: Any) -> Any:
        runs = sim_options.run_with_bar(tasks, **more)
        runs[0].summary["interrupted"] = True
        return runs

    scenario = Scenario(trace="philly/51b7ef", windows=2, window_jobs=20)
    whole = tasks(scenario, policies_named("fifo"), (0,))
    with pytest.raises(KeyboardInterrupt):
        windowed_tasks(scenario, policies_named("fifo,sjf"), whole, 1, run=interrupted)


def test_jsonl_and_id_are_one_line_a_run(cotenant: Cotenant) -> None:
    words = ("sim", "compare", SMALL, "--policies", "fifo,interval:interval_s=30")
    lines = [json.loads(line) for line in cotenant(*words, "-o", "jsonl").out.splitlines()]
    assert [line["schema"] for line in lines] == ["sim-run/1", "sim-run/1"]
    assert cotenant(*words, "-o", "id").out == "fifo\ninterval:interval_s=30\n"


def test_run_is_one_policy(cotenant: Cotenant) -> None:
    value = json.loads(cotenant("sim", "run", SMALL, "--policy", "srtf", "--jobs", "20", "--json").out)
    assert [(run["policy"], run["jobs"]) for run in value["runs"]] == [("srtf", 20)]
    result = cotenant("sim", "run", SMALL, "--policy", "srtf,sjf")
    assert (result.code, "takes one policy" in result.err) == (2, True)


def test_synthetic_jobs_are_called_so(cotenant: Cotenant) -> None:
    result = cotenant("sim", "run", "synth:earth:50", "--policy", "fifo")
    assert "SYNTHETIC" in result.out.splitlines()[1]
    assert json.loads(cotenant("sim", "run", "synth:earth:50", "--policy", "fifo", "--json").out)["workload"][
        "synthetic"
    ]


def test_jobs_that_do_not_fit_are_counted_under_the_table(cotenant: Cotenant) -> None:
    words = ("sim", "compare", SMALL, "--hosts", "1", "--gpus-per-host", "2", "--policies", "fifo,sjf")
    assert "left out: " in cotenant(*words).out
    assert sum(json.loads(cotenant(*words, "--json").out)["workload"]["excluded"].values()) > 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("compare", "no-such.csv"), 3, "there is no such file"),
        (("compare", "philly/0e4a52"), 2, "not a bundled trace; did you mean philly/0e4a51?"),
        (("compare", SMALL, "--policies", "srft"), 2, "did you mean srtf?"),
        (
            ("compare", SMALL, "--hosts", "0"),
            2,
            "--hosts must be at least 1; try `cotenant sim compare --help`",
        ),
        (("compare", SMALL, "--hosts", "1000000"), 2, "--hosts must be at most 100000"),
        (("compare", SMALL, "--jobs", "1e3"), 2, "--jobs must be a whole number"),
        (("compare", SMALL, "--failures", "often"), 2, "--failures must be a number"),
        (("compare", SMALL, "--xi", "known"), 2, "--xi must be one of 'learned', 'measured', got 'known'"),
        (("compare", SMALL, "--policies"), 2, "requires an argument; try `cotenant sim compare --help`"),
        (("compare", SMALL, "--pairs", "nothing"), 3, "there is no pair table 'nothing'"),
        (("compere", SMALL), 2, "did you mean `cotenant sim compare`?"),
        (("compare", SMALL, "--noise", "nan"), 2, "--noise must be a number"),
        (("compare", SMALL, "--estimate-noise", "wild"), 2, "write exact, lognormal:0.7 or limit"),
        (("compare", SMALL, "--estimate-noise", "lognormal:x"), 2, "write exact, lognormal:0.7 or limit"),
        (("compare", SMALL, "--noise", "0.5", "--estimate-noise", "limit"), 2, "say the same"),
        (("compare", SMALL, "--load-scale", "0"), 2, "load scale"),
        (("compare", SMALL, "--failures", "-1"), 2, "above 0 h"),
        (("compare", SMALL, "--pairs", "nothing.csv"), 3, "no pair table"),
        (("compare", SMALL, "--vc", "abc"), 2, "has no VC abc"),
        (("compare", SMALL, "--from-s", "1e12"), 2, "no job was submitted at or after"),
        (("compare", SMALL, "--pollcies", "fifo"), 2, "--policies"),
        (("compare", "synth:earth:many"), 2, "not a number of jobs"),
        (("run", SMALL), 2, "--policy"),
        (("compare", SMALL, "--windows", "5", "--window-jobs", "20"), 2, "need 100 jobs, not 63"),
        (("compare", SMALL, "--windows", "2", "--trim", "0.1"), 2, "--trim does not go with --windows"),
    ],
)
def test_a_mistake_is_one_line_with_what_to_do(
    cotenant: Cotenant, words: tuple[str, ...], code: int, message: str
) -> None:
    result = cotenant("sim", *words)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("error[")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_a_bad_line_of_a_trace_is_named(cotenant: Cotenant, tmp_path: Path) -> None:
    trace = tmp_path / "bad.csv"
    trace.write_text("job_id,submit_time_s,duration_s,gpus\na,0,10,1\nb,5,-3,1\n")
    result = cotenant("sim", "compare", str(trace))
    assert result.code == 2
    assert "bad.csv:3" in result.err
    assert "duration_s" in result.err


def test_out_has_json_plots_and_the_jobs(cotenant: Cotenant, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "results"
    result = cotenant("sim", "compare", SMALL, "--policies", "fifo,srtf", "--out", str(out))
    assert result.code == 0
    names = {path.name for path in out.iterdir()}
    assert names >= {"result.json", "jobs-fifo-0.csv", "jobs-srtf-0.csv", "jct.svg", "parts.svg"}
    assert names >= {f"timeline-{policy}.{form}" for policy in ("fifo", "srtf") for form in ("svg", "json")}
    assert json.loads((out / "result.json").read_text())["schema"] == "sim-compare/1"


def test_without_matplotlib_there_are_tables_and_a_word(
    cotenant: Cotenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest, **more)

    for name in [name for name in sys.modules if name.endswith("results.plots")]:
        monkeypatch.delitem(sys.modules, name)
    import cotenant.controller.sim.results as package

    monkeypatch.delattr(package, "plots", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    result = cotenant("sim", "run", SMALL, "--policy", "fifo", "--out", str(tmp_path / "r"))
    assert result.code == 0
    assert 'pip install ".[sim]"' in result.err
    assert (tmp_path / "r" / "result.json").exists()


def test_a_folder_that_cannot_be_written_is_known_before_anything_runs(
    cotenant: Cotenant, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    result = cotenant("sim", "compare", SMALL, "--out", str(tmp_path / "file" / "below"))
    assert (result.code, "cannot be written to" in result.err) == (1, True)


# --- Traces ----------------------------------------------------------------------------------------------


def test_traces_are_listed_and_described(cotenant: Cotenant) -> None:
    names = cotenant("sim", "trace", "list", "-o", "id").out.split()
    assert {"philly/0e4a51", "synth:earth"} <= set(names)
    value = json.loads(cotenant("sim", "trace", "show", SMALL, "--json").out)
    assert (value["schema"], value["jobs"], value["synthetic"]) == ("trace/1", 63, False)
    assert "CC-BY-4.0" in cotenant("sim", "trace", "show", SMALL).out


def test_a_generated_trace_can_be_read_again_and_stays_synthetic(cotenant: Cotenant, tmp_path: Path) -> None:
    file = str(tmp_path / "made.csv.gz")
    made = cotenant("sim", "trace", "synth", file, "--like", "earth", "--jobs", "40", "--seed", "7")
    assert (made.code, "SYNTHETIC" in made.err) == (0, True)
    again = cotenant("sim", "trace", "synth", file, "--like", "earth", "--jobs", "40")
    assert (again.code, "--force" in again.err) == (1, True)
    value = json.loads(cotenant("sim", "run", file, "--policy", "fifo", "--json").out)
    assert value["workload"]["jobs"] == 40


def test_a_generated_trace_goes_to_one_file_named_either_way(cotenant: Cotenant, tmp_path: Path) -> None:
    asked = ("sim", "trace", "synth", "--like", "earth", "--jobs", "40", "--seed", "3")
    one, other = tmp_path / "one.csv", tmp_path / "other.csv"
    assert cotenant(*asked, str(one)).code == cotenant(*asked, "--out", str(other)).code == 0
    assert one.read_bytes() == other.read_bytes()
    for files in ((), (str(tmp_path / "a.csv"), "--out", str(tmp_path / "b.csv"))):
        assert (cotenant(*asked, *files).code, (tmp_path / "b.csv").exists()) == (2, False)


def test_a_foreign_trace_becomes_ours(cotenant: Cotenant, tmp_path: Path) -> None:
    swf = tmp_path / "cluster.swf"
    swf.write_text("; Version: 2.2\n1 0 5 100 2 -1 -1 2 -1 -1 1 1 1 1 1 -1 -1 -1\n")
    assert cotenant("sim", "trace", "import", str(swf), str(tmp_path / "ours.csv")).code == 0
    value = json.loads(cotenant("sim", "run", str(tmp_path / "ours.csv"), "--policy", "fifo", "--json").out)
    assert value["runs"][0]["jobs"] == 1
    assert value["runs"][0]["run_s"]["mean"] == pytest.approx(100.0)


def test_a_table_with_names_of_its_own_becomes_ours(cotenant: Cotenant, tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text(
        "created;began;ended;nodes\n2024-01-01T00:00:00;2024-01-01T01:00:00;2024-01-01T03:00:00;2\n"
    )
    ours = str(tmp_path / "ours.csv")
    named = "submit=created,start=began,end=ended,gpus=nodes*4"
    assert cotenant("sim", "trace", "import", str(table), ours, "--map", named).code == 0
    value = json.loads(cotenant("sim", "trace", "show", ours, "--json").out)
    assert (value["jobs"], value["gpu_hours"]) == (1, 16.0)
    wrong = {
        ("--map", "submit=created,duration=ended,gpus=gpu"): "has no column gpu; it has 'created'",
        ("--map", named, "--format", "csv"): "--map and --format are two ways to read a file",
        ("--map", "submit=created"): "no column is given for gpus; duration, or start and end",
    }
    for words, says in wrong.items():
        refused = cotenant("sim", "trace", "import", str(table), ours, "--force", *words)
        assert (refused.code, says in refused.err) == (2, True), refused.err
    assert "--map is for a file" in cotenant("sim", "trace", "import", "philly", ours, "--map", named).err


# --- The table -------------------------------------------------------------------------------------------


def test_an_interrupted_run_is_marked_and_never_best() -> None:
    def summary(label: str, mean: float, interrupted: bool) -> dict[str, Any]:
        times = {"mean": mean, "p50": mean, "p95": mean, "p99": mean}
        return {
            "label": label, "seed": 0, "interrupted": interrupted, "finished": 3, "jobs": 9, "jct_s": times,
        }  # fmt: skip

    rows = [summary("fast", 10.0, True), summary("slow", 30.0, False), summary("slower", 40.0, False)]
    lines = sim_table.table(rows, wide=False, width=None).splitlines()
    assert "fast (interrupted: 3 of 9 jobs)" in lines[1]
    assert "*" not in lines[1]
    assert "30.00*" in lines[2]


@given(st.lists(st.floats(1e-3, 1e7), min_size=6, max_size=6), st.booleans())
def test_all_times_of_jobs_have_one_unit_and_all_overheads_have_one(values: list[float], wide: bool) -> None:
    mean, median, p95, wait, load, pause = values
    summary = {
        "label": "a", "seed": 0, "interrupted": False, "makespan_s": p95,
        "jct_s": {"mean": mean, "p50": median, "p95": p95, "p99": p95},
        "wait_s": {"mean": wait, "p95": wait}, "load_s": {"mean": load},
        "pause_s": {"mean": pause}, "rework_s": {"mean": pause},
    }  # fmt: skip
    columns, _ = sim_table.laid_out([summary], wide=wide)
    units: dict[str, set[str]] = {"job": set(), "overhead": set()}
    kinds = {each.title: each.time for each in sim_table.MEASURES}
    for title, _, unit in (each.title.partition(", ") for each in columns):
        units.get(kinds.get(title, ""), set()).add(unit)
    assert [len(each) for each in units.values()] == [1, int(wide)]
    assert units["job"] == {sim_table.unit_for([mean])[1]}


def test_small_numbers_keep_their_digits() -> None:
    assert [sim_table.number(each) for each in (0.0, 0.0083, 0.25, 12.0)] == [
        "0.000",
        "0.0083",
        "0.250",
        "12.00",
    ]


def test_a_column_has_one_unit() -> None:
    assert sim_table.unit_for([30.0, 50.0, 4000.0]) == (1.0, "s")
    assert sim_table.unit_for([90.0, 300.0, 4000.0]) == (60.0, "min")
    assert sim_table.unit_for([]) == (1.0, "s")


def test_a_table_and_its_json_name_what_policies_knew_of_lengths(cotenant: Cotenant) -> None:
    asked = ("sim", "compare", SMALL, "--hosts", "1", "--policies", "fifo,srtf", "--resumable", ".5")
    result = cotenant(*asked, "--known", "progress:30", "--tells", ".8")
    assert result.out.splitlines()[1] == (
        "lengths: told 30 s after the first step by 80 % of the jobs; 50 % of the jobs can resume"
    )
    said = json.loads(cotenant(*asked, "--known", "none", "-o", "json").out)["options"]
    assert (said["known"], said["resumable"], "tells" in said) == ("none", 0.5, False)
    assert "lengths:" not in cotenant(*asked[:-2]).out, "the default goes without saying"
    windows = cotenant(*asked, "--known", "none", "--windows", "2", "--window-jobs", "10", "--seeds", "2")
    assert "lengths: told never; 50 % of the jobs can resume" in windows.out


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--known", "maybe"), "--known 'maybe' makes no sense: write exact, progress:60 or none"),
        (("--tells", ".5"), "write that, or leave --tells out"),
        (("--known", "none", "--estimate-noise", "limit"), "leave --noise, --estimate-noise out"),
    ],
)
def test_what_contradicts_itself_about_lengths_is_refused(
    cotenant: Cotenant, flags: tuple[str, ...], says: str
) -> None:
    result = cotenant("sim", "run", SMALL, "--policy", "fifo", *flags)
    assert (result.code, says in result.err) == (2, True), result.err
