"""The public formats: each read from a small sample that was made by hand in the true format."""

from __future__ import annotations

import json
import math
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.sim.traces.batch_logs import gpus_of
from cotenant.controller.sim.traces.drafting import clock_s, elapsed_s
from cotenant.controller.sim.traces.mapped import column_map, read_mapped
from cotenant.controller.sim.traces.reading import parse, read
from cotenant.controller.sim.traces.trace import Trace, TraceProblem

# Helios.

HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
1425513,uzqls,vcpDC,0,1,1,CANCELLED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-17 14:15:21,675233,0
1425514,uzqls,vcpDC,8,1,1,CANCELLED,2020-06-09 18:42:28,,,0,9
"""


def test_a_helios_log_is_recognised_and_read() -> None:
    trace = parse(HELIOS, name="cluster_log.csv")
    assert trace.job_ids == ("1425511", "1425512")
    assert trace.submit_s.tolist() == [0.0, 26.0]
    assert trace.duration_s.tolist() == [36_848.0, 249.0]
    assert trace.gpus.tolist() == [1.0, 4.0]
    assert trace.vc.texts() == ["vcJkd", "vchbv"] and trace.state.texts() == ["COMPLETED", "FAILED"]
    assert trace.excluded == {"no GPU": 1, "zero duration": 1}
    assert trace.licence == "CC-BY-4.0" and "Hu et al." in trace.source


def test_a_time_that_is_none_is_refused_with_its_line() -> None:
    with pytest.raises(TraceProblem, match=r"log:3: column submit_time: 'yesterday' is not a time like"):
        parse(HELIOS.replace("2020-06-09 18:41:27,2020", "yesterday,2020"), name="log")


# Philly.


def attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, object]:
    detail = [
        {"ip": f"m{host}", "gpus": [f"gpu{n}" for n in range(count)]} for host, count in enumerate(gpus)
    ]
    return {"start_time": start, "end_time": end, "detail": detail}


PHILLY = [
    {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": "application_1506638472019_14199",
        "attempts": [
            attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23", 8),
            attempt("2017-10-07 01:13:30", "2017-10-07 01:23:30", 8, 4),
        ],
        "submitted_time": "2017-10-07 01:11:39",
        "user": "ce2f4c",
    },
    {
        "status": "Killed",
        "vc": "6214e9",
        "jobid": "application_2",
        "attempts": [],
        "submitted_time": "2017-10-07 01:00:00",
        "user": "a",
    },
    {
        "status": "Killed",
        "vc": "6214e9",
        "jobid": "application_3",
        "attempts": [attempt("2017-10-07 01:12:09", None, 1)],
        "submitted_time": "2017-10-07 01:12:00",
        "user": "a",
    },
    {
        "status": "Failed",
        "vc": "6214e9",
        "jobid": "application_4",
        "attempts": [
            attempt(None, "2017-10-07 01:12:11", 2),
            attempt("2017-10-07 02:00:00", "2017-10-07 02:00:07"),
        ],
        "submitted_time": "2017-10-07 01:11:49",
        "user": None,
    },
]


def test_a_philly_log_is_recognised_and_its_attempts_are_added_up() -> None:
    trace = parse(json.dumps(PHILLY), name="cluster_job_log")
    assert trace.job_ids == ("application_1506638472019_14199", "application_4")
    assert trace.submit_s.tolist() == [699.0, 709.0], "counted from the first submission of the log"
    assert trace.duration_s.tolist() == [74.0 + 600.0, 7.0], "an attempt without a start is no time"
    assert trace.gpus.tolist() == [12.0, 2.0], "of the last attempt that names devices"
    assert trace.user.texts() == ["ce2f4c", ""] and trace.state.texts() == ["Pass", "Failed"]
    assert trace.excluded == {"never started": 1, "never ended, or no duration": 1}
    assert "(first: line 4)" in parse(json.dumps(PHILLY[::-1]), name="cluster_job_log").notes[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"attempts": []', "log:1: is not JSON"),
        ('{"jobs": []}', "is not a list of jobs"),
        ("[3]", "job 1 of the list: it is no object"),
        ('[{"attempts": 3}]', "job 1 of the list: attempts is no list"),
        ('[{"attempts": [{"detail": {}}]}]', "no job is left of 1 rows"),
        ('[{"attempts": [{"detail": [1]}]}]', "an attempt's detail is no list of hosts"),
        ('[{"attempts": [], "submitted_time": "soon"}]', "submitted_time 'soon' is not a time like"),
        ('[{"attempts": [], "vc": 7}]', "vc is no text"),
        ("[]", "no job is left of 0 rows"),
    ],
)
def test_json_that_is_no_philly_log_is_refused(text: str, message: str) -> None:
    with pytest.raises(TraceProblem, match=message):
        parse(text, name="log")


def test_a_philly_job_that_is_there_twice_is_refused() -> None:
    with pytest.raises(TraceProblem, match="'application_4' is there twice"):
        parse(json.dumps([*PHILLY, PHILLY[3]]), name="log")


# Alibaba PAI.

PAI_JOBS = """j1,i1,ua,Terminated,1000.0,2000.0
j2,i2,ub,Failed,1010.0,1020.0
j3,i3,ub,Running,1020.0,
j4,i4,ub,Terminated,1030.0,1040.0
"""
PAI_TASKS = """j1,ps,2.0,Terminated,1005.0,1900.0,600.0,29.3,0.0,
j1,worker,4.0,Terminated,1010.0,1995.0,600.0,29.3,50.0,V100
j2,tensorflow,1.0,Failed,1011.0,1019.0,600.0,29.3,800.0,MISC
j3,worker,1.0,Running,1021.0,,600.0,29.3,100.0,T4
j4,worker,1.0,Terminated,1031.0,1039.0,600.0,29.3,,CPU
lost,worker,1.0,Terminated,1031.0,1039.0,600.0,29.3,100.0,T4
"""
PAI_TAGS = "i1,ua,V100,g,bert\ni2,ub,,g,\n"


def pai(folder: Path, **tables: str) -> Path:
    for name, text in tables.items():
        (folder / f"pai_{name}_table.csv").write_text(text)
    return folder


def test_pai_tables_are_joined_and_plans_are_per_cent_of_a_gpu(tmp_path: Path) -> None:
    folder = pai(tmp_path, job=PAI_JOBS, task=PAI_TASKS, group_tag=PAI_TAGS)
    for path in (folder, folder / "pai_task_table.csv", folder / "pai_job_table.csv"):
        trace = read(path)
        assert trace.job_ids == ("j1", "j2")
        assert trace.submit_s.tolist() == [0.0, 10.0]
        assert trace.gpus.tolist() == [2.0, 8.0], "4 instances of half a GPU; 800 per cent"
        assert trace.duration_s.tolist() == [990.0, 8.0], "first launch to last end of its tasks"
        assert trace.gpu_type.texts() == ["V100", "MISC"] and trace.model.texts() == ["bert", ""]
        assert trace.excluded == {"no GPU": 1, "never ended, or no duration": 1}


def test_pai_tables_with_a_header_are_read_as_well(tmp_path: Path) -> None:
    header = "job_name,inst_id,user,status,start_time,end_time\n"
    assert len(read(pai(tmp_path, job=header + PAI_JOBS, task=PAI_TASKS))) == 2


def test_a_missing_pai_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceProblem, match=r"there is no pai_job_table\.csv") as caught:
        read(pai(tmp_path, task=PAI_TASKS))
    assert "pai_job_table.tar.gz" in caught.value.hint


def test_a_broken_pai_table_is_refused_with_its_line(tmp_path: Path) -> None:
    folder = pai(tmp_path, job=PAI_JOBS, task=PAI_TASKS.replace("800.0", "many"))
    with pytest.raises(TraceProblem, match=r"pai_task_table\.csv:3: column plan_gpu: 'many' is not a number"):
        read(folder)


cells = st.sampled_from(["", "j1", "j2", "1.0", "-1", "nan", "1e14", "x", '"', "V100", "50.0"])
pai_texts = st.lists(st.lists(cells, min_size=5, max_size=11).map(",".join), max_size=5).map("\n".join)


@given(job=pai_texts, task=pai_texts, good=st.booleans())
def test_any_pai_tables_give_a_trace_or_a_problem(job: str, task: str, good: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found: Trace | TraceProblem
        try:
            found = read(pai(Path(folder), job=PAI_JOBS if good else job, task=task))
        except TraceProblem as problem:
            found = problem
    assert found.message if isinstance(found, TraceProblem) else len(found)


# Standard Workload Format.

SWF = """; Version: 2.2
; Computer: a cluster
    1      0     10    100     8    -1    -1     8    -1    -1  1   3   1  -1  1  2 -1 -1
    2     60     -1     50     4    -1    -1    -1    -1    -1  0   4   1  -1  1  -1 -1 -1
    3     61     -1     -1    -1    -1    -1    16    -1    -1  5   4   1  -1  1  2 -1 -1
"""


def test_processors_of_the_standard_workload_format_count_as_gpus() -> None:
    trace = parse(SWF, name="log.swf")
    assert trace.job_ids == ("1", "2")
    assert trace.submit_s.tolist() == [0.0, 60.0] and trace.duration_s.tolist() == [100.0, 50.0]
    assert trace.gpus.tolist() == [8.0, 4.0], "requested, else allocated"
    assert trace.user.texts() == ["3", "4"] and trace.vc.texts() == ["2", ""]
    assert trace.state.texts() == ["completed", "failed"]
    assert trace.excluded == {"never ended, or no duration": 1}
    assert trace.source == "log.swf (Standard Workload Format, processors counted, as a GPU)"


def test_several_processors_may_make_a_gpu() -> None:
    trace = parse(SWF, name="log.swf", processors_per_gpu=8)
    assert trace.gpus.tolist() == [1.0, 0.5] and "8 of them as a GPU" in trace.source
    with pytest.raises(TraceProblem, match="0 processors per GPU"):
        parse(SWF, name="log.swf", processors_per_gpu=0)


def test_a_line_of_another_width_is_refused() -> None:
    with pytest.raises(TraceProblem, match=r"log\.swf:6: has 3 fields, the Standard Workload Format has 18"):
        parse(SWF + "4 70 1\n", name="log.swf")


# Slurm.

SACCT = """JobID|User|Account|Partition|JobName|State|Submit|Start|End|ElapsedRaw|AllocTRES|ReqTRES
10|ann|vision|gpu|train "v2|COMPLETED|2024-03-01T10:00:00|2024-03-01T10:01:00|2024-03-01T11:01:00|3600|billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1|cpu=8,gres/gpu=2
10.batch||vision|||COMPLETED|2024-03-01T10:01:00|2024-03-01T10:01:00|2024-03-01T11:01:00|3600|cpu=8,gres/gpu=2|
11_1|bob|text|gpu|x|CANCELLED by 1001|2024-03-01T10:00:30|2024-03-01T10:00:40|2024-03-01T10:00:50|10|cpu=1,gres/gpu:h100=4|cpu=1
12|bob|text|gpu|x|PENDING|2024-03-01T10:02:00|Unknown|Unknown|0||cpu=1,gres/gpu=4
13|bob|text|gpu|x|RUNNING|2024-03-01T10:02:00|2024-03-01T10:02:00|Unknown|99|gres/gpu=1|gres/gpu=1
14|bob|text|cpu|x|COMPLETED|2024-03-01T10:02:00|2024-03-01T10:02:00|2024-03-01T10:03:00|60|cpu=64|cpu=64
15|bob|text|gpu|x|CANCELLED|2024-03-01T10:02:00|None|2024-03-01T10:03:00|0||gres/gpu=8
"""  # noqa: E501


def test_sacct_output_is_recognised_and_its_steps_are_passed_over() -> None:
    trace = parse(SACCT, name="sacct.txt")
    assert trace.job_ids == ("10", "11_1")
    assert trace.submit_s.tolist() == [0.0, 30.0] and trace.duration_s.tolist() == [3600.0, 10.0]
    assert trace.gpus.tolist() == [2.0, 4.0] and trace.gpu_type.texts() == ["a100", "h100"]
    assert trace.organisation.texts() == ["vision", "text"] and trace.vc.texts() == ["gpu", "gpu"]
    assert trace.state.texts() == ["COMPLETED", "CANCELLED"]
    assert trace.excluded == {
        "job steps": 1,
        "no GPU": 1,
        "never ended, or no duration": 2,
        "zero duration": 1,
    }


@pytest.mark.parametrize(
    ("tres", "expected"),
    [
        ("gres/gpu=4", (4.0, "")),
        ("gres/gpu:a100=1,gres/gpu:v100=2", (3.0, "")),
        ("gpu:2", (2.0, "")),
        ("gpu:tesla:2(S:0-1)", (2.0, "tesla")),
        ("cpu=8,gres/gpumem=40G", (0.0, "")),
        ("", (0.0, "")),
    ],
)
def test_gpus_are_read_off_trackable_resources(tres: str, expected: tuple[float, str]) -> None:
    assert gpus_of(tres) == expected


def test_durations_come_from_elapsed_or_from_start_and_end() -> None:
    rows = "1|2024-03-01T10:00:00|{}|gres/gpu=1\n"
    elapsed = "JobID|Submit|Elapsed|AllocTRES\n" + rows.format("1-02:03:04")
    trace = parse(elapsed, name="s")
    assert trace.duration_s.tolist() == [93_784.0] and trace.excluded == {}
    ends = "JobID|Submit|Start|End|AllocTRES\n" + rows.format("2024-03-01T10:00:05|2024-03-01T10:01:00")
    assert parse(ends, name="s").duration_s.tolist() == [55.0]


@pytest.mark.parametrize(
    ("header", "row", "message", "hint"),
    [
        ("JobID|Submit|ElapsedRaw", "1|2024-03-01T10:00:00|5", "no column with GPUs", "AllocTRES"),
        (
            "JobID|Submit|AllocTRES",
            "1|2024-03-01T10:00:00|gres/gpu=1",
            "no column with durations",
            "ElapsedRaw",
        ),
        ("JobID|Submitted|ElapsedRaw|AllocTRES", "1|x|5|", "has no column Submit", "did you mean Submitted?"),
        ("JobID|Submit|ElapsedRaw|AllocTRES", "1|x|5|", "column Submit: 'x' is not a time", ""),
        ("JobID|Submit|Elapsed|AllocTRES", "1|Unknown|5|", "column Elapsed: '5' is not a time like 1-02", ""),
    ],
)
def test_sacct_output_without_what_is_needed_is_refused(
    header: str, row: str, message: str, hint: str
) -> None:
    with pytest.raises(TraceProblem, match=message) as caught:
        parse(f"{header}\n{row}\n", name="s")
    assert hint in caught.value.hint


# Clock times.


def test_clock_times_with_and_without_a_zone() -> None:
    assert clock_s("1970-01-02 00:00:01") == 86_401.0
    assert clock_s("1970-01-01T08:00:00+08:00") == 0.0
    assert math.isnan(clock_s("Unknown")) and math.isnan(clock_s(""))
    assert elapsed_s("02:03") == 123.0 and elapsed_s("1:02:03.5") == 3723.5
    assert math.isnan(elapsed_s("Unknown"))


# Tables with names of their own.

SYNTHETIC = Path(__file__).parent / "synthetic"
MAPS = {
    "philly.csv": "submit=submitted_time,start=start_time,end=end_time,gpus=gpus,user=user",
    "pai_tasks.csv": "submit=start_time,start=start_time,end=end_time,gpus=plan_gpu/100",
    "helios.csv": "submit=submit_time,duration=duration,gpus=gpu_num,user=user",
    "sacct.txt": "submit=Submit,duration=Elapsed,gpus=AllocTRES,user=User",
    "atlas.tsv": "submit=submit_time,start=start_time,end=end_time,gpus=node_count*4,user=user_ID",
}


@pytest.mark.parametrize("file", MAPS)
def test_a_table_with_names_of_its_own_is_read(file: str) -> None:
    """The same two jobs, in five headers; the third row is no job."""
    trace = read(SYNTHETIC / file, columns=column_map(MAPS[file]))
    assert trace.submit_s.tolist() == [0.0, 30.0]
    assert trace.duration_s.tolist() == [3600.0, 60.0]
    narrow = {"pai_tasks.csv": 0.5, "atlas.tsv": 4.0}.get(file, 1.0)
    assert trace.gpus.tolist() == [4.0, narrow]
    assert trace.user.texts() == (["", ""] if file == "pai_tasks.csv" else ["ann", "bob"])
    assert sum(trace.excluded.values()) == 1


@given(
    st.sampled_from([",", ";", "\t", "|"]),
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(1, 64)), min_size=1),
    st.booleans(),
    st.permutations(["who", "made", "began", "done", "n", "name"]),
)
def test_separator_form_of_times_and_order_of_columns_change_nothing(
    separator: str, jobs: list[tuple[int, int, int]], dates: bool, order: list[str]
) -> None:
    def moment(time_s: int) -> str:
        return datetime.fromtimestamp(time_s, UTC).isoformat() if dates else str(time_s)

    rows = [
        {
            "who": "a",
            "made": moment(at),
            "began": moment(at + 7),
            "done": moment(at + 7 + long),
            "n": str(gpus),
            "name": str(name),
        }
        for name, (at, long, gpus) in enumerate(jobs)
    ]
    text = "\n".join(separator.join(row[name] for name in order) for row in [{n: n for n in order}, *rows])
    trace = read_mapped(
        text, column_map("submit=made, start=began, end=done, gpus=n, user=who, id=name"), name="t"
    )
    assert trace.job_ids == tuple(str(name) for name in sorted(range(len(jobs)), key=lambda at: jobs[at][0]))
    jobs = sorted(jobs, key=lambda job: job[0])
    assert trace.submit_s.tolist() == [float(at - jobs[0][0]) for at, _, _ in jobs]
    assert trace.duration_s.tolist() == [float(long) for _, long, _ in jobs]
    assert trace.gpus.tolist() == [float(gpus) for _, _, gpus in jobs]


WRONG_MAPS = {
    "submit=a": ("no column is given for gpus; duration, or start and end", ""),
    "gpus=a,start=b": ("no column is given for submit; duration, or start and end", ""),
    "submit=a,gpus=b,lenght=c": ("'lenght=c' is not FIELD=COLUMN", "fields are submit, start"),
    "submt=a": ("'submt=a' is not FIELD=COLUMN", "did you mean submit?"),
    "submit=a,submit=b": ("submit is there twice", ""),
    "submit": ("'submit' is not FIELD=COLUMN", ""),
}


@pytest.mark.parametrize(("text", "says"), WRONG_MAPS.items(), ids=WRONG_MAPS.keys())
def test_a_map_that_says_too_little_is_refused(text: str, says: tuple[str, str]) -> None:
    with pytest.raises(TraceProblem) as caught:
        column_map(text)
    assert caught.value.message == says[0]
    assert says[1] in caught.value.hint


def test_all_columns_that_are_missing_are_named_at_once_with_the_nearest() -> None:
    columns = column_map("submit=submit_tme,duration=Duration,gpus=gpus,user=usr")
    with pytest.raises(TraceProblem) as caught:
        read(SYNTHETIC / "helios.csv", columns=columns)
    assert caught.value.message.endswith("helios.csv:1: has no columns submit_tme, Duration, gpus, usr")
    near = "did you mean submit_time for submit_tme, duration for Duration, user for usr?"
    assert caught.value.hint.startswith(f"{near}; it has 'job_id', 'user', 'gpu_num'")
    with pytest.raises(TraceProblem) as caught:
        read(SYNTHETIC / "atlas.tsv")
    assert "has no columns submit_time_s, duration_s, gpus" in caught.value.message
    assert "submit_time for submit_time_s" in caught.value.hint and "--map submit=A" in caught.value.hint


VALUES = {
    "1591699261000,1,1": "column s: '1591699261000' is not a time: seconds since 1970 (not milliseconds)",
    "yesterday,1,1": "column s: 'yesterday' is not a time",
    "2020-06-09 18:41,soon,1": "column d: 'soon' is not a duration",
    "5,1,many": "column g: 'many' is not a number of GPUs",
    "5,1,-1": "column g: '-1' is not a number of GPUs",
    "٣,1,1": "is not a time",
}


@pytest.mark.parametrize(("row", "says"), VALUES.items())
def test_a_value_that_cannot_be_read_is_refused_with_its_line(row: str, says: str) -> None:
    with pytest.raises(TraceProblem) as caught:
        read_mapped(f"s,d,g\n0,1,1\n{row}\n", column_map("submit=s,duration=d,gpus=g"), name="t.csv")
    assert "t.csv:3:" in caught.value.message and says in caught.value.message


def test_our_own_table_may_have_another_separator() -> None:
    assert len(parse("submit_time_s;duration_s;gpus\n0;5;1\n", name="t.csv")) == 1
    assert len(parse("submit_time_s\tduration_s\tgpus\n0\t5\t1\n", name="t.csv")) == 1
