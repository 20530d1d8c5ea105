"""`doctor`: each check tells good from bad, and says what to do about the bad."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from cotenant.controller.cli.doctor import controller_checks as checks
from cotenant.controller.cli.doctor.check import Check
from cotenant.controller.cli.doctor.containers import TriedContainer, try_container
from cotenant.controller.cli.doctor.controller_link import ControllerAnswers, ask_controller
from cotenant.controller.cli.doctor.doctor import run_all
from cotenant.controller.cli.doctor.facts import Facts
from cotenant.controller.cli.doctor.host_checks import account, container, folders, survival
from cotenant.controller.cli.doctor.processes import Agent
from cotenant.controller.domain import HostState
from cotenant.controller.system import settings
from cotenant.controller.wire import clients as wire
from cotenant.profiler.driver.cdi import NO_NAMES
from tests.controller.cli.gpu_hosts import NOBODY, made_up

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant, StandIn


def facts(
    flags: dict[str, object],
    status: wire.ControllerStatus | None = None,
    nodes: wire.Nodes | None = None,
    **known: object,
) -> Facts:
    answers = ControllerAnswers(status=status, nodes=nodes) if status else NOBODY
    return made_up(flags, **{"answers": answers, **known})


def said(found: Check | None) -> Check:
    assert found is not None
    return found


def test_a_fact_is_found_once_and_when_it_is_asked_for(tmp_path: Path) -> None:
    given = Facts(settings.load({}, files=[], environ={}), root=tmp_path)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "os-release").write_text("ID=debian\n")
    assert given.is_debian
    (tmp_path / "etc" / "os-release").unlink()
    assert given.is_debian
    with pytest.raises(AssertionError, match="debian"):
        made_up({}, debian=True)


def test_every_check_runs_here_and_says_what_to_do(at_home: Path) -> None:
    found = run_all(facts({}))
    assert len({check.name for check in found}) == len(found)
    assert all(check.found for check in found)
    assert all(check.todo for check in found if check.verdict != "ok")


def test_an_open_socket_fails(controller: StandIn, at_home: Path) -> None:
    given = facts({"controller.endpoint": controller.endpoint})
    (at_home / "c.sock").chmod(0o666)
    assert said(checks.socket(given)).verdict == "fail"
    (at_home / "c.sock").chmod(0o600)
    assert said(checks.socket(given)).verdict == "ok"


def test_a_bad_endpoint_fails(at_home: Path) -> None:
    assert said(checks.socket(facts({"controller.endpoint": "http://x"}))).verdict == "fail"


def test_a_checkpoint_root_that_cannot_be_written_fails(at_home: Path) -> None:
    def said(root: Path) -> Check:
        loaded = settings.load({"checkpoint.root": str(root)}, files=[], environ={})
        return next(each for each in folders(Facts(loaded)) if each.name == "checkpoints")

    (at_home / "file").write_text("")
    found = said(at_home / "file" / "below")
    assert (found.verdict, found.todo) == ("fail", "set checkpoint.root")
    assert said(at_home / "new").verdict != "fail"
    assert not (at_home / "new").exists(), "doctor changes nothing"


def test_a_shared_account_is_called_unsafe() -> None:
    assert "Unsafe" in said(account(facts({"agent.shared_account": True}))).found
    assert said(account(facts({}))).verdict == "ok"


def test_a_clock_that_is_off(replies: ModuleType) -> None:
    assert said(checks.clock(facts({}, replies.status()))).verdict == "warn", (
        "the reply's clock is years behind"
    )
    assert said(checks.clock(facts({}))).verdict == "ok"


def test_dropped_messages_are_counted(replies: ModuleType) -> None:
    assert said(checks.messages(facts({}, replies.status(counters={"messages": 9})))).verdict == "ok"
    assert checks.messages(facts({})) is None, "nobody to ask: nothing to say"
    status = replies.status(counters={"messages": 9, "bad_messages": 2})
    found = said(checks.messages(facts({}, status)))
    assert (found.verdict, found.found) == ("warn", "dropped: 2 unreadable")


def test_another_version(replies: ModuleType) -> None:
    assert "this is" in said(checks.controller(facts({}, replies.status(version="9.9")))).found


def test_a_gpu_whose_mig_instances_are_offered_is_no_trouble(replies: ModuleType) -> None:
    divided = replies.device("gpu-1", healthy=False, note="divided into 1 MIG instances, for jobs with ...")
    part = replies.device("gpu-1-mig-7", type="MIG-1g.10gb", parent="GPU-1")
    found = said(
        checks.hosts(facts({}, replies.status(), replies.nodes(replies.node("laptop", divided, part))))
    )
    assert (found.verdict, found.found) == ("ok", "1 host, 1 device")


HOSTS = {"ok": HostState.OK, "warn": HostState.SILENT}


@pytest.mark.parametrize(("verdict", "state"), HOSTS.items())
def test_hosts(replies: ModuleType, verdict: str, state: HostState) -> None:
    nodes = replies.nodes(replies.node("laptop", replies.device(), state=state))
    assert said(checks.hosts(facts({}, replies.status(), nodes))).verdict == verdict


def test_hosts_that_others_cannot_reach_are_named(replies: ModuleType) -> None:
    alone, other = (replies.node(name) for name in ("h1", "h2"))
    assert "agent.address" not in said(checks.hosts(facts({}, replies.status(), replies.nodes(alone)))).found
    found = said(checks.hosts(facts({}, replies.status(), replies.nodes(alone, other))))
    assert (found.verdict, "h1, h2: agent.address is not set there" in found.found) == ("ok", True)


def test_a_device_that_is_not_offered(replies: ModuleType) -> None:
    locked = replies.device("cpu1", healthy=False, note="locked by pid 3")
    found = said(checks.hosts(facts({}, replies.status(), replies.nodes(replies.node("laptop", locked)))))
    assert (found.verdict, "locked by pid 3" in found.found) == ("warn", True)


UNITS = {
    "a unit that kills all": ("/system.slice/cotenant-agent.service", "control-group", "fail"),
    "a unit as we ship it": ("/system.slice/cotenant-agent.service", "process", "ok"),
    "a login session": ("/user.slice/user-7.slice/session-3.scope", "", "warn"),
    "no group": ("/", "", "ok"),
}


@pytest.mark.parametrize(("group", "mode", "verdict"), UNITS.values(), ids=UNITS.keys())
def test_whether_jobs_survive_their_agent(group: str, mode: str, verdict: str) -> None:
    agent = Agent(pid=7, user="root", uid=0, cgroup=group, kill_mode=mode)
    assert said(survival(facts({}, agent=agent))).verdict == verdict


def test_doctor_without_a_controller(at_home: Path, cotenant: Cotenant) -> None:
    result = cotenant("doctor")
    assert result.code == 0
    assert "no controller" in result.out
    value = json.loads(cotenant("doctor", "--json").out)
    assert value["schema"] == "checks/1"
    assert {"GPUs", "controller", "clock"} <= {check["name"] for check in value["checks"]}


def test_doctor_fails_where_something_fails(
    at_home: Path, cotenant: Cotenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTENANT_CHECKPOINT__ROOT", "/dev/null/x")
    assert cotenant("doctor").code == 1


def test_a_standby_that_could_take_over_is_ok_and_none_or_one_far_behind_is_not(replies: ModuleType) -> None:
    def found(*standbys: wire.StandbyView, **more: object) -> Check | None:
        controllers = replies.controllers(*standbys, **more)
        return checks.standby(facts({}, answers=ControllerAnswers(controllers=controllers)))

    assert checks.standby(facts({})) is None and found(term=0) is None, "the journal is a file"
    near, far = replies.standby(), replies.standby(behind_entries=5_000, behind_s=40.0)
    good = said(found(far, near))
    assert good.verdict == "ok" and "tcp://b:1 is up to date" in good.found
    assert "tcp://a:1 on a (term 3: the leader had ended)" in good.found
    behind, nobody = said(found(far)), said(found())
    assert behind.verdict == "warn" and "5,000 entries and 40 s behind" in behind.found
    assert nobody.verdict == "warn" and "--standby" in nobody.todo


def test_a_controller_that_knows_no_standbys_is_asked_all_the_same(
    controller: StandIn, replies: ModuleType, at_home: Path
) -> None:
    loaded = settings.load({"controller.endpoint": controller.endpoint}, files=[], environ={})
    controller.says(wire.GetStatus, replies.status())
    controller.says(wire.ListNodes, replies.nodes())
    controller.says(wire.GetControllers, wire.Failure(request_id=0, code="version", message="unknown"))
    found = ask_controller(loaded, controller.endpoint)
    assert found.status is not None and found.controllers is None
    controller.says(wire.GetControllers, replies.controllers())
    assert ask_controller(loaded, controller.endpoint).controllers is not None


# --- Containers -------------------------------------------------------------------------------------


def tried(folder: Path, code: int, err: str) -> tuple[TriedContainer | None, list[list[str]]]:
    (folder / "podman").write_text("#!/bin/sh\n")
    (folder / "podman").chmod(0o755)
    ran: list[list[str]] = []

    def run(words: list[str]) -> subprocess.CompletedProcess[str]:
        ran.append(words)
        if code < 0:
            raise subprocess.TimeoutExpired(words, 20.0)
        return subprocess.CompletedProcess(words, code, "", err)

    return try_container(run, str(folder), uid=1000), ran


def test_a_container_is_tried_as_jobs_have_them(tmp_path: Path) -> None:
    found, (words,) = tried(tmp_path, 0, "")
    assert {"--ipc=host", "--pid=host", "--network=host", "--userns=keep-id"} < {*words}
    check = said(container(facts({}, tried_container=found)))
    assert (check.verdict, check.found) == ("ok", "podman starts a container")
    without = facts({}, tried_container=found, no_names=NO_NAMES)
    check = said(container(without))
    assert (check.verdict, check.found) == (
        "warn", "podman gives containers no GPUs: /etc/cdi has no names by UUID",
    )  # fmt: skip
    assert "nvidia-ctk cdi generate --device-name-strategy=uuid" in check.todo
    assert container(facts({})) is None and try_container(path=str(tmp_path / "empty")) is None


QUEUES = "Error: statfs /dev/mqueue: no such file or directory"


@pytest.mark.parametrize(
    ("code", "err", "found", "todo"),
    [
        (125, f"warning\n{QUEUES}\n", QUEUES, "mount -t mqueue mqueue /dev/mqueue"),
        (
            125,
            "Error: cannot find newuidmap\n",
            "Error: cannot find newuidmap",
            "jobs with --image fail here",
        ),
        (1, "", "exit code 1", "jobs with --image fail here"),
        (-1, "", "it did not come back within 20 s", "jobs with --image fail here"),
    ],
)
def test_what_the_program_says_is_said_with_what_to_do(
    tmp_path: Path, code: int, err: str, found: str, todo: str
) -> None:
    check = said(container(facts({}, tried_container=tried(tmp_path, code, err)[0])))
    assert (check.verdict, check.found) == ("warn", f"podman starts none: {found}")
    assert todo in check.todo
