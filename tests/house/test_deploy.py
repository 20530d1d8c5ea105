"""The units and settings in examples/deploy keep the promises that only a unit can keep."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cotenant.agent.host.cgroup_mounts import AGENT_LEAF
from cotenant.controller.system import paths, settings
from tests.building.limits import within_s

DEPLOY = Path(__file__).resolve().parents[2] / "examples" / "deploy"
AGENTS = ("cotenant-agent.service", "user/cotenant-agent.service")
CONTROLLER = "cotenant-controller.service"
UNITS = (*AGENTS, CONTROLLER)
BREAKS_JOBS = re.compile(
    r"NoNewPrivileges|MemoryDenyWriteExecute|SystemCall\w+|Private(Tmp|Devices|Users|Network|Mounts)"
    r"|Protect\w+|Restrict\w+|CapabilityBoundingSet|DevicePolicy|DeviceAllow|DynamicUser|OOMScoreAdjust"
    r"|Memory(High|Max)|CPUQuota|ReadOnlyPaths|InaccessiblePaths|UMask|Nice"
)


def unit(name: str) -> dict[str, list[str]]:
    """Every setting of a unit, whatever its section; one that is written twice has two values."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / name).read_text().splitlines():
        if line and not line.startswith(("#", ";", "[")):
            key, equals, value = line.partition("=")
            assert equals, f"{name}: {line!r} is no setting"
            found.setdefault(key.strip(), []).append(value.strip())
    return found


@pytest.mark.parametrize("name", AGENTS)
def test_an_agents_restart_leaves_jobs_alive(name: str) -> None:
    """Promise 13."""
    settings_of = unit(name)
    assert settings_of["KillMode"] == ["process"]
    assert settings_of["Delegate"] == ["yes"]
    assert settings_of["DelegateSubgroup"] == [AGENT_LEAF]
    assert settings_of["OOMPolicy"] == ["continue"], "one job out of memory must not stop the agent"
    assert settings_of["TasksMax"] == ["infinity"], "jobs count towards the unit's tasks"
    assert not {"ExecStop", "ExecStopPost", "PartOf", "BindsTo"} & settings_of.keys()


def test_sockets_of_running_jobs_outlive_the_agent() -> None:
    assert unit("cotenant-agent.service")["RuntimeDirectoryPreserve"] == ["yes"]


@pytest.mark.parametrize("name", AGENTS)
def test_nothing_is_forbidden_to_the_agent_that_jobs_may_need(name: str) -> None:
    """A unit's sandbox is inherited by every job its service starts."""
    assert [key for key in unit(name) if BREAKS_JOBS.fullmatch(key)] == []


@pytest.mark.parametrize("name", UNITS)
def test_services_come_back(name: str) -> None:
    settings_of = unit(name)
    assert settings_of["Restart"] == ["always"]
    assert settings_of["StartLimitIntervalSec"] == ["0"]


def test_on_both_hosts_of_a_standby_the_same_starts() -> None:
    (start,) = unit(CONTROLLER)["ExecStart"]
    assert unit("cotenant-standby.conf")["ExecStart"] == ["", f"{start} --standby"]


def test_the_controller_is_locked_in_and_not_root() -> None:
    settings_of = unit(CONTROLLER)
    assert settings_of["User"] == ["cotenant"]
    assert settings_of["CapabilityBoundingSet"] == [""]
    assert settings_of["NoNewPrivileges"] == ["yes"]
    assert settings_of["ProtectSystem"] == ["strict"]
    assert settings_of["StateDirectoryMode"] == ["0700"]


@pytest.mark.parametrize(("name", "service"), [("controller", CONTROLLER), ("agent", AGENTS[0])])
def test_the_example_settings_are_valid_and_are_those_the_unit_reads(name: str, service: str) -> None:
    loaded = settings.load(files=[DEPLOY / f"{name}.toml"], environ={})
    assert f"COTENANT_CONFIG=/etc/cotenant/{name}.toml" in unit(service)["Environment"]
    state = unit(service)["StateDirectory"][0]
    assert loaded.value(f"{name}.state_dir") == f"/var/lib/{state}"


def test_both_examples_mean_the_same_port() -> None:
    listens = paths.controller_endpoint(
        settings.load(files=[DEPLOY / "controller.toml"], environ={}).settings
    )
    (looks,) = paths.agent_endpoints(settings.load(files=[DEPLOY / "agent.toml"], environ={}).settings)
    assert listens.rpartition(":")[2] == looks.rpartition(":")[2]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_knows_every_setting(name: str, tmp_path: Path) -> None:
    """With programs that exist everywhere: a missing /opt/cotenant is no fault of the unit."""
    text = re.sub(r"(?m)^ExecStart=.*$", "ExecStart=/bin/true", (DEPLOY / name).read_text())
    copy = tmp_path / Path(name).name
    copy.write_text(re.sub(r"(?m)^(User|Group)=.*$", "", text))
    verify = ("systemd-analyze", "verify", "--man=no", str(copy))
    done = subprocess.run(verify, capture_output=True, text=True, timeout=within_s(60), check=False)
    unknown = [line for line in (done.stdout + done.stderr).splitlines() if "Unknown" in line]
    assert [line for line in unknown if "DelegateSubgroup" not in line] == []  # Since 254.
