"""What follows for a device from what is seen of it, told as a specification and as properties."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.daemon.core.edge import GpuFault
from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.agent.gpus.causes import CAUSES, LEAVE_GRACE_S
from cotenant.agent.gpus.device_states import DeviceStateStore, recall
from cotenant.agent.gpus.health import USE_AFTER_S, DeviceCondition, Health
from cotenant.agent.gpus.probe_results import ProbeResult, Process, ProcessOwner, XidSeen
from cotenant.agent.gpus.xid import ROWS, meaning
from cotenant.controller.domain import AttemptNo, JobId

ONE, TWO = "GPU-1", "GPU-2"
QUIET_S = {
    "suspect": CAUSES["odd"].quiet_s,
    "hung": CAUSES["silent"].quiet_s,
    "renewed": CAUSES["renewed"].quiet_s,
}
JOB: AttemptKey = (JobId("7"), AttemptNo(1))
OTHER: AttemptKey = (JobId("8"), AttemptNo(2))


def process(
    pid: int, used_mib: int | None = 1000, *, of: AttemptKey | None = None, **changes: Any
) -> Process:
    owner = ProcessOwner(kind="attempt", job_id=of[0], attempt=of[1]) if of else ProcessOwner(kind="foreign")
    owner = msgspec.structs.replace(owner, user="bob", command="python x.py", **changes)
    return Process(pid=pid, used_mib=used_mib, owner=owner)


class Host:
    """Two GPUs and a clock."""

    def __init__(self, **options: Any) -> None:
        options = {"names": {ONE: "gpu-1", TWO: "gpu-2"}} | options
        self.health = Health({ONE: 600, TWO: 600}, **options)
        self.stepping: tuple[AttemptKey, ...] = ()
        self.now_s = 1000.0
        self.faults: list[GpuFault] = []
        self.live: dict[str, frozenset[AttemptKey]] = {}
        self.mps: frozenset[str] = frozenset()

    def probe(self, *processes: Process, uuid: str = ONE, **facts: Any) -> DeviceCondition:
        self.now_s += 2.0
        self.health.surroundings(self.held, self.mps, self.now_s, self.stepping)
        used = 600 + sum(p.used_mib or 0 for p in processes)
        plain = ProbeResult(uuid=uuid, used_mib=used, processes=processes)
        self.faults = self.health.note_probe(msgspec.structs.replace(plain, **facts), self.now_s)
        return self.condition(uuid)

    @property
    def held(self) -> dict[AttemptKey, list[str]]:
        keys = {key for keys in self.live.values() for key in keys}
        return {key: [uuid for uuid in self.live if key in self.live[uuid]] for key in keys}

    def xid(self, number: int, of: Process | None = None, recovery: int | None = None) -> DeviceCondition:
        """`of`: the process that the kernel's log names."""
        self.now_s += 1.0
        self.health.surroundings(self.held, self.mps, self.now_s)
        self.faults = self.health.xid(
            XidSeen(uuid=ONE, xid=number, owner=of.owner if of else None, recovery=recovery), self.now_s
        )
        return self.condition()

    def complaints(self) -> dict[str, str]:
        """By job."""
        return {key[0]: what for key, what in self.health.complaints(self.now_s)}

    def condition(self, uuid: str = ONE) -> DeviceCondition:
        self.health.settle(self.now_s)
        return self.health.conditions()[uuid]


def test_a_quiet_device_is_offered() -> None:
    assert Host().probe() == DeviceCondition()


# --- Who is on it ----------------------------------------------------------------------------------


def test_a_foreign_process_keeps_work_away_until_it_is_gone() -> None:
    host = Host()
    assert host.probe(process(42)).note == "in use by pid 42 of bob (python x.py, 1000 MiB)"
    assert host.condition().state == "ok", "nothing is wrong with the device"
    since = msgspec.structs.replace(process(43).owner, since="Nov 28 09:12")
    theirs = msgspec.structs.replace(process(43), owner=since)
    assert "(python x.py, 1000 MiB, since Nov 28 09:12)" in host.probe(theirs).note
    assert host.probe() == DeviceCondition()


def test_a_foreign_process_is_ignored_where_the_setting_says_so() -> None:
    assert Host(foreign="ignore").probe(process(42)) == DeviceCondition()


def test_small_changes_of_a_foreign_process_are_not_told_again() -> None:
    host = Host()
    first = host.probe(process(42, 1100))
    assert host.probe(process(42, 1200)) == first
    assert host.probe(process(42, 9000)) != first


def test_our_jobs_our_mps_and_what_only_draws_are_not_foreign() -> None:
    host = Host()
    host.live = {ONE: frozenset({JOB})}
    drawing = msgspec.structs.replace(process(3), computes=False)
    assert host.probe(process(1, of=JOB), process(2, kind="mps"), drawing) == DeviceCondition()


def test_one_that_cannot_be_seen_is_taken_for_ours_only_while_a_job_is_there() -> None:
    host = Host()
    hidden = process(9, kind="hidden")
    host.live = {ONE: frozenset({JOB})}
    assert host.probe(hidden) == DeviceCondition()
    host.live = {}
    assert host.probe(hidden).note.startswith("in use by pid 9")
    fresh = Host()
    assert fresh.probe(hidden) == DeviceCondition(), "it may just have ended"
    assert fresh.probe(hidden).note.startswith("in use by pid 9")


def test_who_computes_is_not_known_before_the_first_look() -> None:
    host = Host(busy=(ONE,))
    assert host.condition().note == "who uses it is not known yet"
    assert host.condition(TWO) == DeviceCondition()
    assert host.probe() == DeviceCondition()


def test_what_is_left_of_a_job_keeps_work_away_but_not_in_the_moment_of_its_end() -> None:
    host = Host()
    host.live = {ONE: frozenset({JOB})}
    host.probe(process(1, of=JOB))
    host.live = {}
    assert host.probe(process(1, of=JOB)) == DeviceCondition()
    host.now_s += LEAVE_GRACE_S
    assert host.probe(process(1, of=JOB)).note == (
        "not free yet: pid 1 of bob (python x.py, 1000 MiB), of a job that has ended"
    )
    assert host.probe() == DeviceCondition()


def test_memory_that_nobody_owns_up_to_is_held_until_it_is_free() -> None:
    host = Host()
    assert host.probe(used_mib=9600) == DeviceCondition(), (
        "once is no proof: it goes a little later than its process"
    )
    note = "9000 MiB are still held by no process that can be seen here"
    assert host.probe(used_mib=9600) == DeviceCondition(note=note, held=True)
    assert host.probe() == DeviceCondition()


# --- Jobs on GPUs that are not theirs, and jobs on none --------------------------------------------


def test_a_job_on_a_gpu_that_it_was_not_given_is_named_and_no_neighbour_pays() -> None:
    host = Host()
    host.live = {TWO: frozenset({JOB}), ONE: frozenset({OTHER})}
    note = "job 7 uses it and holds gpu-2"
    looks = [host.probe(process(1, 20_000, of=JOB), process(2, of=OTHER)) for _ in range(4)]
    assert looks == [DeviceCondition(note=note)] * 4, (
        "nobody is put beside it, nothing is wrong with the device"
    )
    assert host.probe(uuid=TWO) == DeviceCondition()
    assert host.complaints()["7"].startswith("this job uses gpu-1, which it was not given: it holds gpu-2")
    assert host.complaints()["8"].startswith("job 7 uses gpu-1 as well without holding it")
    host.xid(31, of=process(1, of=JOB))
    assert host.faults[0].culprits == (JOB,), "what breaks there by that process is that job's"
    host.xid(31)
    assert host.faults[0].strangers, "and where nobody knows whose it was, its co-tenant was not alone"
    assert host.health.not_free([ONE], 0.0, {OTHER}) == {ONE: HELD_BY_TWO}, (
        "its own, not the other's 20000 MiB"
    )
    host.live = {ONE: frozenset({OTHER})}
    host.now_s += LEAVE_GRACE_S
    assert host.probe(process(1, 20_000, of=JOB)).note.endswith("of a job that has ended")
    assert host.complaints() == {}


HELD_BY_TWO = "1000 MiB are still held by process 2 (python x.py), of a job that has ended"


def test_strangers_are_ignored_and_so_is_a_job_that_was_given_another_gpu() -> None:
    host = Host(foreign="ignore")
    host.live = {TWO: frozenset({JOB})}
    assert host.probe(process(1, of=JOB)) == DeviceCondition()
    assert host.complaints().keys() == {"7"}, "it is told all the same"


def test_a_job_that_makes_steps_and_computes_on_no_gpu_is_told_and_counts_as_not_using_them() -> None:
    host = Host()
    host.live, host.stepping = {ONE: frozenset({JOB})}, (JOB,)
    host.probe()
    assert host.health.attempts_on_no_gpu(host.now_s) == set(), "it may be about to"
    host.now_s += USE_AFTER_S
    host.probe()
    assert host.health.attempts_on_no_gpu(host.now_s) == {JOB}
    assert host.complaints()["7"].startswith("this job holds gpu-1 and computes on no GPU")
    may_use_it: list[dict[str, Any]] = [
        {"processes": (process(1, of=JOB),)},
        {"processes": (process(9, kind="hidden"),)},  # Another PID namespace.
        {"processes": (process(9),)},  # A container that a daemon has started.
        {"lists_computing": False},
        {"used_mib": 20_600},  # NVML lists nobody in some containers.
        {"code": 999, "problem": "no"},
    ]
    for facts in may_use_it:
        host.probe(**facts)
        assert host.health.attempts_on_no_gpu(host.now_s) == set(), facts
    host.probe(process(2, of=OTHER), msgspec.structs.replace(process(3), computes=False))
    host.live |= {TWO: frozenset({OTHER})}
    host.probe()
    host.probe(process(1, of=JOB), uuid=TWO)
    assert host.health.attempts_on_no_gpu(host.now_s) == set(), "it computes, if in the wrong place"


# --- Faults ----------------------------------------------------------------------------------------


def test_a_programs_error_stays_with_it_without_mps() -> None:
    host = Host()
    host.live = {ONE: frozenset({JOB, OTHER})}
    host.probe()
    assert host.xid(31) == DeviceCondition()
    [fault] = host.faults
    assert (fault.ends, fault.device_failed, fault.why) == (False, False, "Xid 31 (GPU memory page fault)")


def test_under_mps_it_hits_all_and_the_device_waits_until_they_are_gone() -> None:
    host = Host()
    host.live, host.mps = {ONE: frozenset({JOB, OTHER})}, frozenset({ONE})
    host.probe(process(1, of=JOB), process(2, of=OTHER))
    assert host.xid(31, of=process(1, of=JOB)) == DeviceCondition(
        state="suspect", note="suspect: Xid 31 (GPU memory page fault)"
    )
    [fault] = host.faults
    assert (fault.ends, fault.culprits) == (True, (JOB,))
    host.live = {ONE: frozenset({OTHER})}
    assert host.probe(process(2, of=OTHER)).state == "suspect"
    host.live = {}
    assert host.probe() == DeviceCondition()


def test_a_process_that_is_not_ours_makes_nobody_a_culprit() -> None:
    host = Host(foreign="ignore")
    host.live, host.mps = {ONE: frozenset({JOB})}, frozenset({ONE})
    host.probe(process(1, of=JOB), process(5))
    host.xid(31, of=process(5))
    [fault] = host.faults
    assert (fault.culprits, fault.strangers) == ((), True)


def test_a_fault_of_an_mps_server_waits_for_its_clients() -> None:
    host = Host()
    host.live = {ONE: frozenset({JOB})}
    host.probe(process(1, of=JOB))
    host.health.note_fault(GpuFault(uuids=(ONE,), why="FAULT"), host.now_s)
    assert host.probe(process(1, of=JOB)).note == "suspect: FAULT"
    host.live = {}
    assert host.probe() == DeviceCondition()


@pytest.mark.parametrize(("xid", "state", "ends"), [(48, "draining", True), (63, "draining", None),
    (94, "draining", False), (95, "draining", True), (79, "lost", True), (119, "lost", True),
    (120, "lost", True), (154, "draining", None), (45, "ok", None), (9999, "suspect", None),
    (39, "ok", False), (109, "draining", False), (140, "draining", True), (143, "draining", True),
    (147, "suspect", None), (153, "ok", None), (158, "draining", True)])  # fmt: skip
def test_what_an_xid_does(xid: int, state: str, ends: bool | None) -> None:
    """ends: everybody, only who dies by itself (no MPS here), or nobody is told anything (None)."""
    host = Host()
    host.live = {ONE: frozenset({JOB})}
    host.probe()
    assert host.xid(xid).state == state
    assert [fault.ends for fault in host.faults] == ([] if ends is None else [ends])
    assert all(fault.device_failed for fault in host.faults)


@pytest.mark.parametrize(
    ("recovery", "state", "note"),
    [
        (None, "draining", "the driver wants it recovered): reset it"),
        (0, "ok", ""),
        (1, "draining", "the driver wants it reset): reset it"),
        (2, "draining", "the driver wants the host rebooted): reboot the host"),
        (3, "draining", "the driver wants peer-to-peer drained): end every process that uses peer-to-peer"),
        (4, "draining", "the driver wants it drained and reset): reset it"),
        (99, "draining", "the driver wants it recovered): reset it"),
    ],
)
def test_xid_154_does_what_the_driver_wants_done(recovery: int | None, state: str, note: str) -> None:
    """Nothing, where it says that nothing is to be done any more; a reset, where it does not say what."""
    host = Host()
    host.live = {ONE: frozenset({JOB})}
    host.probe()
    condition = host.xid(154, recovery=recovery)
    assert condition.state == state
    assert note in condition.note
    assert host.faults == [], "who had to end was ended by the Xid that it sums up"


def test_nobody_is_blamed_for_an_error_that_the_catalog_lays_on_no_program() -> None:
    for number in range(1, 200):
        row = meaning(number)
        assert row.number == number
        assert not row.by_program or (row.bucket, row.ends) == ("restart", "clients")
        assert bool(row.action) == (row.bucket in ("drain", "lost")), row
    assert len({row.number for row in ROWS}) == len(ROWS)


def test_a_lost_gpu_is_told_once() -> None:
    host = Host()
    host.probe()
    assert host.probe(code=15, problem="gone").state == "lost"
    assert [fault.device_failed for fault in host.faults] == [True]
    host.probe(code=15, problem="gone")
    assert host.faults == []


# --- Coming back -----------------------------------------------------------------------------------


def test_a_suspect_comes_back_when_it_has_been_quiet() -> None:
    host = Host()
    host.probe()
    assert host.xid(9999).state == "suspect"
    host.now_s += QUIET_S["suspect"] - 5.0
    assert host.probe().state == "suspect"
    host.now_s += 5.0
    assert host.probe() == DeviceCondition()


def test_a_suspect_that_does_not_answer_stays_one() -> None:
    host = Host()
    host.probe()
    host.health.note_silence(ONE, "it hangs", host.now_s)
    host.now_s += 10 * QUIET_S["hung"]
    assert host.condition() == DeviceCondition(state="suspect", note="suspect: it hangs")
    assert host.probe() == DeviceCondition(), "it answers, and it has been quiet for long"


def test_a_device_where_cuda_does_not_initialise_is_out_until_it_does() -> None:
    host = Host()
    host.probe()
    host.health.note_cuda(ONE, "CUDA does not initialise: 802 system not yet initialized", host.now_s)
    host.now_s += 10 * QUIET_S["suspect"]
    assert host.probe().note == "suspect: CUDA does not initialise: 802 system not yet initialized"
    host.health.note_cuda(ONE, "", host.now_s)
    assert host.probe() == DeviceCondition()


def test_a_person_is_trusted_about_suspects_and_draining_devices_and_not_about_lost_ones() -> None:
    for xid, after in ((9999, "ok"), (48, "ok"), (79, "lost")):
        host = Host()
        host.probe()
        host.xid(xid)
        host.health.trust(host.now_s)
        assert host.probe().state == after


def test_a_person_who_knows_that_rows_are_to_be_replaced_is_believed() -> None:
    host = Host()
    assert host.probe(remap_pending=True).state == "draining"
    host.health.trust(host.now_s)
    assert host.probe(remap_pending=True) == DeviceCondition()


def test_more_uncorrectable_errors_drain_a_device_without_any_xid() -> None:
    host = Host()
    host.probe(ecc_uncorrected=2)
    assert host.probe(ecc_uncorrected=3).state == "draining"


RESETS: list[tuple[dict[str, Any], bool]] = [
    ({"energy_mj": 5, "ecc_uncorrected": 0, "remap_pending": False}, True),
    ({"energy_mj": 5, "remap_pending": False}, True),
    ({"ecc_uncorrected": 0, "remap_pending": False}, True),
    ({"energy_mj": 999_999}, False),  # Without persistence mode it begins anew by itself.
    ({"ecc_uncorrected": 0}, False),
]


@pytest.mark.parametrize(("signs", "is_believed"), RESETS)
@pytest.mark.parametrize("xid", [48, 79])
def test_a_reset_is_believed_by_two_signs_and_its_device_is_a_suspect_first(
    xid: int, signs: dict[str, Any], is_believed: bool
) -> None:
    host = Host()
    before: dict[str, Any] = {"energy_mj": 1_000_000, "ecc_uncorrected": 7, "remap_pending": True}
    host.probe(**before)
    bad = host.xid(xid).state
    assert host.probe(**before).state == bad
    assert host.probe(**before | signs).state == ("suspect" if is_believed else bad)
    host.now_s += QUIET_S["renewed"]
    assert (host.probe() == DeviceCondition()) == is_believed


def test_a_lost_device_that_answers_again_has_begun_anew() -> None:
    host = Host()
    host.probe()
    host.probe(code=15, problem="gone")
    assert host.probe().state == "suspect"


def test_a_watcher_that_was_killed_is_no_proof_of_a_reset() -> None:
    host = Host()
    host.probe(energy_mj=1000)
    host.xid(48)
    host.health.note_silence(ONE, "its watcher ended", host.now_s)
    assert host.probe(energy_mj=1100).state == "draining"


def test_held_memory_waits_for_itself_alone_and_does_not_end_another_trouble() -> None:
    host = Host()
    host.live, host.mps = {ONE: frozenset({JOB, OTHER})}, frozenset({ONE})
    host.probe()
    host.health.not_given_back(JOB, {ONE: "held by a zombie"}, host.now_s)
    host.live = {ONE: frozenset({OTHER})}
    assert host.probe() == DeviceCondition(), "its co-tenant may stay"
    host.live = {ONE: frozenset({JOB, OTHER})}
    host.xid(31)
    host.health.not_given_back(JOB, {ONE: "held by a zombie"}, host.now_s)
    host.live = {ONE: frozenset({OTHER})}
    assert host.probe().state == "suspect", "the MPS server's other client has to go as well"
    host.live = {}
    assert host.probe() == DeviceCondition()


# --- Over a restart of the agent -------------------------------------------------------------------


def restarted(host: Host, *, boot_id: str = "b") -> Host:
    """What the next agent knows, by way of the file."""
    written = msgspec.json.encode(
        DeviceStateStore(boot_id="b", marks=host.health.marks, pasts=host.health.pasts)
    )
    kept = recall(msgspec.json.decode(written, type=DeviceStateStore), boot_id, host.now_s)
    again = Host(marks=kept.marks, pasts=kept.pasts)
    again.now_s, again.live, again.mps = host.now_s, host.live, host.mps
    return again


def struck(xid: int) -> Host:
    host = Host()
    host.live, host.mps = {ONE: frozenset({JOB})}, frozenset({ONE})
    host.probe(energy_mj=1000, ecc_uncorrected=7)
    host.xid(xid)
    return host


@pytest.mark.parametrize("xid", [31, 48, 79, 9999])
def test_no_restart_makes_a_device_better(xid: int) -> None:
    host = struck(xid)
    before = host.condition()
    again = restarted(host)
    assert again.condition() == before
    assert again.probe(energy_mj=1001, ecc_uncorrected=7) == before


def test_those_whom_a_fault_concerned_are_waited_for_by_the_next_agent_as_well() -> None:
    again = restarted(struck(31))
    assert again.probe().state == "suspect", "its clients are still there"
    again.live = {}
    assert again.probe() == DeviceCondition()


@pytest.mark.parametrize("xid", [48, 79])
def test_a_reset_while_no_agent_was_there_is_seen_by_the_next_one(xid: int) -> None:
    again = restarted(struck(xid))
    again.live = {}
    assert again.probe(energy_mj=5, ecc_uncorrected=0).state == "suspect"
    again.now_s += QUIET_S["renewed"]
    assert again.probe() == DeviceCondition()


def test_errors_of_its_memory_while_no_agent_was_there_are_seen_by_the_next_one() -> None:
    host = Host()
    host.probe(ecc_uncorrected=2)
    assert restarted(host).probe(ecc_uncorrected=3).state == "draining"


def test_a_device_that_was_gone_and_answers_the_next_agent_has_begun_anew() -> None:
    host = Host()
    host.probe(code=15, problem="gone")
    again = restarted(host)
    assert again.condition().state == "lost"
    assert again.probe().state == "suspect"


def test_a_persons_word_is_kept_until_the_device_was_reset() -> None:
    host = Host()
    host.probe(remap_pending=True, energy_mj=1000, ecc_uncorrected=7)
    host.health.trust(host.now_s)
    again = restarted(host)
    assert again.probe(remap_pending=True, energy_mj=1001) == DeviceCondition()
    again.probe(remap_pending=True, energy_mj=5, ecc_uncorrected=0)
    assert again.probe(remap_pending=True, energy_mj=6).state == "draining"


def test_a_file_that_has_one_state_of_a_device_and_no_cause_is_read() -> None:
    old = {
        "version": 1,
        "boot_id": "b",
        "marks": [{"uuid": ONE, "state": "draining", "why": "Xid 48", "since_s": 1.0, "quiet_s": 0.0}],
        "pasts": [{"uuid": ONE, "counters": {"energy_mj": 5, "ecc_uncorrected": None}, "record": 7}],
    }
    kept = recall(msgspec.json.decode(msgspec.json.encode(old), type=DeviceStateStore), "b", 1000.0)
    host = Host(marks=kept.marks, pasts=kept.pasts)
    assert host.probe().note == "draining: Xid 48"
    assert host.health.gpus[ONE].past.record == 7


def test_a_boot_forgets_suspects_and_has_the_others_show_that_they_work() -> None:
    for xid, state in ((31, "ok"), (9999, "ok"), (48, "suspect"), (79, "suspect")):
        host = struck(xid)
        host.live = {}
        again = restarted(host, boot_id="another")
        assert again.condition().state == state
        again.probe()
        again.now_s += QUIET_S["renewed"]
        assert again.probe() == DeviceCondition()


def test_an_xid_counts_as_read_when_all_was_told() -> None:
    host = Host()
    host.probe(record=5)
    seen = XidSeen(uuid=ONE, xid=48, record=7)
    host.health.xid(seen, host.now_s)
    assert [past.record for past in host.health.pasts] == [5, None]
    host.health.dealt_with(seen)
    assert [past.record for past in host.health.pasts] == [7, None]
    host.probe(record=6)
    assert [past.record for past in host.health.pasts] == [7, None]


def test_an_error_that_is_read_late_is_not_that_of_who_came_since_the_last_look() -> None:
    host = Host()
    host.live, host.mps = {ONE: frozenset({JOB})}, frozenset({ONE})
    host.probe()
    host.now_s += 1.0
    host.live = {ONE: frozenset({JOB, OTHER})}
    host.health.surroundings(host.held, host.mps, host.now_s)
    [fault] = host.health.xid(XidSeen(uuid=ONE, xid=31, record=9, is_late=True), host.now_s)
    assert fault.spared == (OTHER,)
    host.live = {ONE: frozenset({OTHER})}
    assert host.probe() == DeviceCondition(), "nor is it waited for"
    [fault] = host.health.xid(XidSeen(uuid=ONE, xid=31, record=10), host.now_s)
    assert fault.spared == ()


def test_after_a_restart_nobody_can_have_come_in_between() -> None:
    again = restarted(struck(31))
    again.health.surroundings(again.held, again.mps, again.now_s)
    [fault] = again.health.xid(XidSeen(uuid=ONE, xid=31, record=9, is_late=True), again.now_s)
    assert fault.spared == ()


# --- Whatever happens ------------------------------------------------------------------------------

EVENTS = st.one_of(
    st.tuples(st.just("xid"), st.sampled_from([13, 31, 45, 48, 63, 74, 79, 94, 95, 119, 154, 9999])),
    st.tuples(st.just("look"), st.sampled_from([0, 0, 0, 15, 16, 999])),
    st.tuples(st.just("hang"), st.just(0)),
    st.tuples(st.just("quiet"), st.integers(1, 2000)),
    st.tuples(st.just("trust"), st.just(0)),
    st.tuples(st.just("restart"), st.just(0)),
)


@given(st.lists(EVENTS, max_size=30))
def test_a_device_that_is_not_ok_is_not_offered_and_one_that_is_lost_stays_so_while_it_answers(
    events: list[tuple[str, int]],
) -> None:
    host = Host()
    silent = False
    for kind, number in events:
        before = host.condition().state
        if kind == "xid":
            host.xid(number)
        elif kind == "look":
            was_silent, silent = silent, number != 0
            host.probe(code=number, problem="no" if number else "")
            assert before != "lost" or host.condition().state == "lost" or was_silent
        elif kind == "hang":
            silent = True
            host.health.note_silence(ONE, "hangs", host.now_s)
        elif kind == "restart":
            known = host.condition()
            host = restarted(host)
            assert host.condition() == known, "neither better nor worse"
        elif kind == "quiet":
            host.now_s += number
        else:
            host.health.trust(host.now_s)
        condition = host.condition()
        assert bool(condition.note) or condition.state == "ok"
        assert kind == "look" or before != "lost" or condition.state == "lost"
        assert host.condition(TWO) == DeviceCondition(), "nothing happened to the other"
