"""What the driver says of GPUs, asked of a library of ours that says what the test wants."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from cotenant.checkpoint.talk.protocol import ENV_JOB
from cotenant.profiler.driver import probe_client, process_info
from cotenant.profiler.driver.facts import (
    FAILURES,
    LOST,
    NO_PERMISSION,
    NO_WORD,
    NOT_NVMLS,
    DriverFacts,
    GpuFacts,
    GpuLink,
    GpuProcess,
    NvmlError,
)
from cotenant.profiler.driver.library import NO_BINDING
from cotenant.profiler.driver.probe_client import (
    NoProbeAnswer,
    ask,
    driver_facts,
)
from tests.agent.mock_gpus import ONE, TWO, MockGpus
from tests.building.limits import within_s
from tests.processes import own_program

GONE = 2**22 + 7
"""No process has this number."""


def test_each_gpu_is_described_and_one_that_is_lost_has_its_problem(gpus: MockGpus) -> None:
    gpus.say("gpu 0 used 5000", "gpu 1 capability 8.0", "gpu 1 mode 3", "gpu 1 persistence 0")
    gpus.say("gpu 2 uuid GPU-3", "gpu 2 rc 15")
    found = driver_facts()
    assert (found.problem, found.driver, found.cuda) == ("", "580.0-mock", (13, 2))
    one, two, lost = found.gpus
    assert (one.bus, two.bus, lost.bus) == ("00000000:01:00.0", "00000000:02:00.0", "")
    assert (one.uuid, one.name, one.capability, one.mig) == (ONE, "NVIDIA H200 (mock)", (9, 0), False)
    assert (one.memory_mib, one.taken_mib, one.used_mib, one.reserved_mib) == (81920, 5000, 4400, 600)
    assert (two.uuid, two.capability, two.compute_mode, two.persistence) == (TWO, (8, 0), 3, False)
    assert (lost.problem_code, lost.problem, lost.memory_mib) == (LOST, FAILURES[LOST].what, None)


def test_what_only_a_thorough_look_asks_is_unknown_without_it(gpus: MockGpus) -> None:
    gpus.say("gpu 0 gpm 1", "gpu 0 clocks 1200 1980 48", "hang nvmlGpmSampleGet")
    one, _ = driver_facts(20.0).gpus
    assert (one.gpm, one.ecc, one.clock_mhz, one.slowed_by, one.nvlinks) == (None, None, None, (), None)


def test_a_thorough_look_finds_errors_clocks_and_counters(gpus: MockGpus) -> None:
    gpus.say("gpu 0 gpm 1", "gpu 0 clocks 1200 1980 48", "gpu 1 ecc 3", "gpu 1 remap 0 0 1 0")
    one, two = driver_facts(diagnostics=True).gpus
    assert (one.clock_mhz, one.clock_mhz_max) == (1200, 1980)
    assert one.slowed_by == ("hardware slowdown", "heat (hardware)")
    assert (one.ecc, one.ecc_uncorrected, one.remap_pending, one.remap_failed) == (True, 0, False, False)
    assert (two.ecc_uncorrected, two.remap_pending) == (3, True)
    assert ((one.gpm, one.gpm_problem), (two.gpm, two.gpm_problem)) == ((True, ""), (False, ""))


def test_counters_that_may_not_be_read_are_there_all_the_same(gpus: MockGpus) -> None:
    gpus.say("gpu 0 gpm 1", f"fail nvmlGpmSampleGet {NO_PERMISSION}")
    one, _ = driver_facts(diagnostics=True).gpus
    assert (one.gpm, one.gpm_problem) == (True, FAILURES[NO_PERMISSION].what)


def test_gpus_reach_each_other_by_nvlink_or_by_what_pcie_passes(gpus: MockGpus) -> None:
    assert driver_facts(diagnostics=True).links == (
        GpuLink(first=0, second=1, path="two processors", peer=True),
    )
    gpus.say("gpu 0 nvlinks 6", "gpu 1 nvlinks 6", "gpu 2 uuid GPU-3", "gpu 2 rc 15")
    found = driver_facts(diagnostics=True)
    assert found.links == (GpuLink(first=0, second=1, path="NVLink", peer=True),), "a lost one has no links"
    assert [gpu.nvlinks for gpu in found.gpus] == [6, 6, None]


def test_an_old_driver_leaves_much_unknown_and_is_asked_in_its_own_words(
    gpus: MockGpus, old_nvml_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(old_nvml_library))
    gpus.say("gpu 0 used 5000", f"process 0 {GONE} 300 C")
    one, _ = driver_facts(diagnostics=True).gpus
    assert (one.problem, one.memory_mib, one.taken_mib) == ("", 81920, 5000)
    assert (one.used_mib, one.reserved_mib, one.mig, one.gpm) == (None, None, None, None)
    assert (one.ecc_uncorrected, one.remap_pending, one.remap_failed) == (None, None, None)
    assert [(each.pid, each.memory_mib) for each in one.processes] == [(GONE, 300)]


def test_mig_instances_are_listed_with_their_own_memory_and_processes(gpus: MockGpus, tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / f"MIG-77aa.{os.getpid()}.4000").write_text("C")
    gpus.say("gpu 1 mig 1", "gpu 1 instance MIG-77aa H200 MIG 1g.18gb", "gpu 1 instance MIG-78aa half")
    gpus.say(f"claims {tmp_path / 'claims'}")
    one, two = driver_facts().gpus
    assert (one.mig, one.instances) == (False, ())
    assert [(each.uuid, each.memory_mib, each.taken_mib) for each in two.instances] == [
        ("MIG-77aa", 9984, 4020),
        ("MIG-78aa", 9984, 20),
    ]
    assert [[each.pid for each in part.processes] for part in two.instances] == [[os.getpid()], []]


def test_who_may_not_ask_for_a_divided_gpus_memory_has_its_instances_all_the_same(gpus: MockGpus) -> None:
    gpus.say("gpu 1 mig 1", "gpu 1 instance MIG-77aa half", "fail nvmlDeviceGetMemoryInfo 4")
    one, two = driver_facts().gpus
    assert one.problem, "every whole GPU answers this"
    assert (two.problem, two.memory_mib, [part.uuid for part in two.instances]) == ("", None, ["MIG-77aa"])


def test_of_memory_that_is_the_hosts_only_that_of_named_processes_is_known(gpus: MockGpus) -> None:
    gpus.say("fail nvmlDeviceGetMemoryInfo 3", f"process 0 {GONE} 300 C", f"process 0 {GONE + 1} -1 C")
    one, two = driver_facts().gpus
    assert [(gpu.problem, gpu.shared_memory, gpu.memory_mib) for gpu in (one, two)] == [("", True, None)] * 2
    assert (one.taken_mib, two.taken_mib) == (300, 0)


# --- Processes -------------------------------------------------------------------------------------


def test_each_process_is_listed_once_whatever_it_does(gpus: MockGpus) -> None:
    gpus.say(f"process 0 {GONE} -1 C", f"process 0 {GONE} 300 M", f"process 0 {GONE} 5 G")
    gpus.say(f"process 0 {GONE + 1} 7 G", f"process 0 {GONE - 1} -1 C")
    one, _ = driver_facts().gpus
    assert one.unlisted == ()
    assert one.processes == (
        GpuProcess(pid=GONE - 1, memory_mib=None),
        GpuProcess(pid=GONE, memory_mib=300),
        GpuProcess(pid=GONE + 1, memory_mib=7, computes=False),
    )


def test_a_list_that_the_driver_refuses_is_said_to_be_missing(gpus: MockGpus) -> None:
    gpus.say(f"process 0 {GONE} 7 G", "fail nvmlDeviceGetComputeRunningProcesses_v3 3")
    one, _ = driver_facts().gpus
    assert one.unlisted == ("computing",)
    assert [each.pid for each in one.processes] == [GONE]


def test_a_thorough_look_says_who_they_are_and_one_that_is_gone_stays_nameless(gpus: MockGpus) -> None:
    code = "import time; time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, ENV_JOB: "7"})
    try:
        gpus.say(f"process 0 {child.pid} 10 C", f"process 0 {os.getpid()} 10 C", f"process 0 {GONE} 10 C")
        one, _ = driver_facts(diagnostics=True).gpus
    finally:
        child.kill()
        child.wait()
    found = {each.pid: each for each in one.processes}
    ours, foreign, gone = found[child.pid], found[os.getpid()], found[GONE]
    assert ours.ours and code in ours.command and ours.user == foreign.user != ""
    assert not foreign.ours and own_program() in foreign.command
    assert (gone.user, gone.command, gone.ours) == ("", "", False)


def test_a_command_stands_on_one_short_line() -> None:
    assert len(process_info.command(os.getpid(), 12)) <= 12
    assert (
        process_info.command(GONE, 80) == ""
        and process_info.environment(GONE) == {}
        and process_info.name(GONE) == ""
    )


def test_larger_records_behind_the_name_of_version_3_are_read_by_version_2(
    gpus: MockGpus, nvml_library_535: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library_535))
    pids = (4711, 4712, 4713)
    gpus.say("driver 535.54.03", *(f"process 0 {pid} 300 C" for pid in pids))
    one, _ = driver_facts().gpus
    assert [(each.pid, each.memory_mib) for each in one.processes] == [(pid, 300) for pid in pids]
    gpus.say("fail nvmlDeviceGetComputeRunningProcesses_v2 13")
    one, _ = driver_facts().gpus
    assert (one.processes, one.unlisted) == ((), ("computing",)), "no number that cannot be is believed"
    assert one.unlisted_why.startswith("driver 535.54.03 lists processes that cannot be: versions 535.43 to")


# --- Failures --------------------------------------------------------------------------------------


def test_this_machine_answers_or_says_why_not() -> None:
    """The real thing."""
    found = driver_facts(diagnostics=True)
    assert found.gpus or found.problem
    assert "failed" not in found.problem


@pytest.mark.parametrize("code", [4, 9, 999])
def test_a_driver_that_does_not_work_is_a_reason(gpus: MockGpus, code: int) -> None:
    gpus.say(f"init {code}")
    found = driver_facts()
    assert (found.gpus, found.problem_code) == ((), code)
    assert found.problem == NvmlError(code, found.problem.rpartition(": ")[2]).what


@pytest.mark.parametrize("code", [*FAILURES, 999])
def test_every_failure_has_words(code: int) -> None:
    error = NvmlError(code, "Unheard Of")
    assert len(error.what) > 15 and str(error).startswith(error.what)
    assert (code == 999) == ("Unheard Of" in error.what)


def test_a_binding_that_is_not_installed_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pynvml.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    assert driver_facts() == DriverFacts(problem=NO_BINDING, problem_code=NOT_NVMLS)


def test_what_the_library_prints_is_not_taken_for_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text("import os; os.write(1, b'loading\\n')\nraise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    assert driver_facts().problem == NO_BINDING


# --- Asking ----------------------------------------------------------------------------------------


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_a_driver_that_never_answers_takes_only_the_child_with_it(gpus: MockGpus) -> None:
    gpus.say("hang nvmlSystemGetDriverVersion 0")
    assert driver_facts(1.0).problem == "NVML did not answer within 1 s (is a GPU hung? see `dmesg`)"


def test_a_driver_that_takes_its_time_is_waited_for_and_it_is_said(gpus: MockGpus) -> None:
    gpus.say("hang nvmlInitWithFlags")
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        gpus.unsay("hang")  # It is loaded now.

    assert [gpu.uuid for gpu in driver_facts(within_s(60.0), say=say, say_s=0.1).gpus] == [ONE, TWO]
    assert said[0] == "NVML has not answered for 0.1 s; a driver that is being loaded may take minutes"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (python("raise SystemExit('Bus error')"), "asking NVML failed: Bus error"),
        (python("print('what?')"), "asking NVML failed: exit 0"),
        (python("print('{\"gpus\": 3}')"), "asking NVML failed: exit 0"),
        (("/no/such/program",), "cannot start /no/such/program: No such file or directory"),
    ],
)
def test_a_child_that_gives_no_sense_says_why(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(NoProbeAnswer) as said:
        ask(words, DriverFacts, 20.0)
    assert str(said.value) == why


class Stuck:
    """A child that not even SIGKILL ends, as far as `asking` can tell."""

    def __init__(self) -> None:
        self.is_gone = False

    def poll(self) -> int | None:
        return -9 if self.is_gone else None


def test_nobody_is_asked_while_too_many_children_are_stuck() -> None:
    stuck = [Stuck() for _ in range(probe_client.STUCK_MAX)]
    left_behind: list[Any] = list(stuck)
    answers = python("print('{}')")
    with pytest.raises(NoProbeAnswer, match="hang in the driver"):
        ask(answers, DriverFacts, 20.0, left_behind=left_behind)
    stuck[0].is_gone = True
    assert ask(answers, DriverFacts, 20.0, left_behind=left_behind) == DriverFacts()


def test_a_gpu_that_hangs_does_not_hide_the_others(gpus: MockGpus) -> None:
    gpus.say("hang nvmlDeviceGetMemoryInfo 1", "gpu 2 uuid GPU-3")
    found = driver_facts(5.0)
    assert (found.problem, found.driver) == ("", "580.0-mock")
    assert [(gpu.uuid, gpu.problem) for gpu in found.gpus] == [(ONE, ""), (TWO, NO_WORD), ("GPU-3", "")]


HANGS: Final = """
import os, sys, time
first, hung, nameless = int(sys.argv[-1]), {hung}, {nameless}
say = lambda *more: print('{{"complete": false, "gpus": [{{"index": %d%s}}]}}' % more, flush=True)
print('{{"complete": false, "driver": "%d"}}' % os.getppid(), flush=True)
for index in range(first, 3):
    say(index, ', "problem": "hangs"')
    if index not in nameless:
        say(index, ', "uuid": "GPU-%d", "problem": "hangs"' % index)
    if index in hung:
        time.sleep(600)
    say(index, ', "uuid": "GPU-%d"' % index)
print('{{}}', flush=True)
"""


@pytest.mark.parametrize(
    ("hung", "nameless", "told"),
    [
        ({0}, {0}, ["", "GPU-1", "GPU-2"]),
        ({0, 2}, {2}, ["GPU-0", "GPU-1", ""]),
        ({0, 1, 2}, {3}, ["GPU-0", "GPU-1", "GPU-2"]),
        ({1, 2}, {1, 2}, None),
    ],
)
def test_who_hangs_is_found_out_one_by_one(
    hung: set[int], nameless: set[int], told: list[str] | None
) -> None:
    """Of three GPUs. Where two in a row do not even say their names it is NVML that hangs."""
    words = python(HANGS.format(hung=hung, nameless=nameless))
    found = driver_facts(within_s(60.0), words=words, one_gpu_s=1.0)
    if told is None:
        assert found.problem.startswith("NVML did not answer within") and not found.gpus
        return
    assert [gpu.uuid for gpu in found.gpus] == told and found.driver == str(os.getpid())
    assert [gpu.index for gpu in found.gpus if gpu.problem] == sorted(hung)
    assert not [each for each in psutil.Process().children() if HANGS[:20] in " ".join(each.cmdline())]


ASKS_BEHIND: Final = """
import os, sys, time
first, folder = int(sys.argv[-1]), {folder!r}
if first:
    hung = int(open(folder + "/pid").read())
    state = open("/proc/%d/stat" % hung).read().rpartition(")")[2].split()[0]
    print('{{"driver": "the first one is in state %s"}}' % state, flush=True)
else:
    open(folder + "/pid", "w").write(str(os.getpid()))
    print('{{"complete": false, "gpus": [{{"index": 0, "problem": "hangs"}}]}}', flush=True)
    time.sleep(600)
"""


def test_the_first_session_stays_open_while_another_child_asks(tmp_path: Path) -> None:
    """Else the driver is unloaded in between, and loaded again by each child."""
    found = driver_facts(
        within_s(60.0), words=python(ASKS_BEHIND.format(folder=str(tmp_path))), one_gpu_s=0.5
    )
    assert (found.driver, len(found.gpus)) == ("the first one is in state S", 1)


@pytest.mark.parametrize(
    ("release", "status", "who"),
    [
        ("6.6.87.2-microsoft-standard-WSL2", None, "Windows"),
        ("6.8.0-1021-nvidia-64k", "Node: 2\nStatus: online\n", "the kernel"),
        ("6.8.0-1021-nvidia-64k", "Node: 2\nStatus: offline\n", ""),
        ("6.8.0-60-generic", None, ""),
    ],
)
def test_who_uses_the_memory_of_a_gpu_and_is_in_no_list(
    tmp_path: Path, release: str, status: str | None, who: str
) -> None:
    """Windows under WSL2; the kernel where the memory is a NUMA node of the host (GH200, GB200)."""
    files = {"proc/sys/kernel/osrelease": release, "proc/driver/nvidia/gpus/0009:01:00.0/numa_status": status}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            (tmp_path / name).write_text(text)
    gpu = GpuFacts(index=0, uuid="GPU-1", bus="00000009:01:00.0")
    found = process_info.unlisted_users([gpu], tmp_path)
    assert found.keys() == ({"GPU-1"} if who else set())
    assert who in found.get("GPU-1", "")
