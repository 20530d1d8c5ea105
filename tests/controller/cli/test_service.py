"""`cotenant service`: what a host gets by its configuration, what units promise, what systemd is asked."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.agent.host.cgroup_mounts import AGENT_LEAF
from cotenant.controller.cli.setup.host_services import HostServices, plan_services
from cotenant.controller.cli.setup.service import ServiceManager, check_program, write_files
from cotenant.controller.cli.setup.units import MARK, DaemonName, unit_name, unit_text, unit_word
from cotenant.controller.present.problem import Problem
from cotenant.controller.system import keys
from tests.building.limits import within_s
from tests.building.systemctl import pid_of, put_on_path

BREAKS_JOBS = re.compile(
    r"NoNewPrivileges|MemoryDenyWriteExecute|SystemCall\w+|Private(Tmp|Devices|Users|Network|Mounts)"
    r"|Protect\w+|Restrict\w+|CapabilityBoundingSet|DevicePolicy|DeviceAllow|DynamicUser|OOMScoreAdjust"
    r"|Memory(High|Max)|CPUQuota|ReadOnlyPaths|InaccessiblePaths|UMask|Nice"
)
DEPLOY = Path(__file__).resolve().parents[3] / "examples" / "deploy"
PROGRAM = "/opt/cotenant/bin/cotenant"
SYSTEM = pytest.mark.parametrize("is_system", [True, False], ids=["system", "user"])


def planned(
    folder: Path, *asked: DaemonName, is_system: bool = True, users: str = "", text: str | None = None
) -> HostServices:
    environ = {"HOME": str(folder)}
    if text is not None:
        (folder / "own.toml").write_text(text)
        environ["COTENANT_CONFIG"] = str(folder / "own.toml")
    return plan_services(asked, is_system=is_system, users=users, program=PROGRAM, environ=environ)


def units(plan: HostServices) -> dict[DaemonName, dict[str, list[str]]]:
    """Every setting of each unit, whatever its section; one that is written twice has two values."""
    found: dict[DaemonName, dict[str, list[str]]] = {}
    for daemon in plan.daemons:
        settings: dict[str, list[str]] = found.setdefault(daemon, {})
        for line in unit_text(daemon, plan.context).splitlines():
            if line and not line.startswith(("#", "[")):
                key, equals, value = line.partition("=")
                assert equals, f"{line!r} is no setting"
                settings.setdefault(key, []).append(value)
    return found


# --- What a host is ---------------------------------------------------------------------------------


def test_a_machine_without_settings_serves_all_its_accounts(tmp_path: Path) -> None:
    plan = planned(tmp_path, text="")
    assert plan.daemons == ("controller", "agent")
    assert plan.endpoint == "ipc:///run/cotenant-controller/controller.sock"
    assert 'users = "*"' in plan.settings_text
    assert "fair_share_half_life_s = 604800" in plan.settings_text, (
        "nobody's hundred jobs keep the others waiting"
    )
    assert 'users = "gpu"' in planned(tmp_path, text="", users="gpu").settings_text
    (tmp_path / "written.toml").write_text(plan.settings_text)
    again = planned(tmp_path, text=plan.settings_text)
    assert again.settings_text == "" and again[:3] == plan[:3], "what it wrote leads to the same units"


CONFIGURED: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "a server of a cluster": ('[agent]\ncontroller = "tcp://192.0.2.7:7070"', ("agent",), True),
    "a server and its users": ('[controller]\nendpoint = "tcp://192.0.2.7:7070"', ("agent",), True),
    "the head of a cluster": (
        '[controller]\nendpoint = "tcp://0.0.0.0:7070"\nkeys_dir = "/k"', ("controller",), True,
    ),
    "one of two heads": (
        '[controller]\nendpoint = ["tcp://127.0.0.1:7070", "tcp://192.0.2.8:7070"]\nkeys_dir = "/k"',
        ("controller",), True,
    ),
    "a user's own machine": ("", ("controller", "agent", "web"), False),
    "somebody who asks a cluster": ('[controller]\nendpoint = "tcp://192.0.2.7:7070"', ("web",), False),
    "an agent of one's own": ('[agent]\ncontroller = "tcp://192.0.2.7:7070"', ("agent", "web"), False),
    "a user of a machine that has services": (
        '[controller]\nendpoint = "ipc:///run/cotenant-controller/controller.sock"', ("web",), False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGURED)
def test_the_configuration_says_what_runs(name: str, tmp_path: Path) -> None:
    text, wanted, is_system = CONFIGURED[name]
    assert planned(tmp_path, text=text, is_system=is_system).daemons == wanted


def test_a_head_with_a_key_of_its_own_host_runs_an_agent_too(tmp_path: Path) -> None:
    keys.init_cluster(tmp_path / "keys")
    keys.add_agent(tmp_path / "keys", "head")
    text = f'[controller]\nendpoint = "tcp://127.0.0.1:7070"\nkeys_dir = "{tmp_path}/keys"\n'
    plan = planned(tmp_path, text=text)
    assert plan.daemons == ("controller",) and "agent.keys_dir is not set" in plan.notes[0]
    text += f'[agent]\nhost = "head"\nkeys_dir = "{tmp_path}/keys"\n'
    assert planned(tmp_path, text=text).daemons == ("controller", "agent")


def test_options_name_exactly_what_runs(tmp_path: Path) -> None:
    assert planned(tmp_path, "agent", text="").daemons == ("agent",)
    with pytest.raises(Problem, match="a page acts for one person"):
        planned(tmp_path, "web", text="")
    with pytest.raises(Problem, match="needs keys"):
        planned(tmp_path, "controller", text='[controller]\nendpoint = "tcp://0.0.0.0:7070"')
    with pytest.raises(Problem, match="has no settings yet"):
        planned(tmp_path, users="gpu", text='[controller]\nendpoint = "tcp://0.0.0.0:7070"')


def test_variables_of_the_shell_do_not_get_lost_silently(tmp_path: Path) -> None:
    environ = {
        "HOME": str(tmp_path),
        "COTENANT_AGENT__DEVICES": "cpu:2",
        "PGPASSFILE": "/etc/cotenant/pgpass",
    }
    plan = plan_services((), is_system=False, users="", program=PROGRAM, environ=environ)
    assert "COTENANT_AGENT__DEVICES" in plan.notes[-1]
    assert "PGPASSFILE=/etc/cotenant/pgpass" in units(plan)["controller"]["Environment"]


# --- What units promise -----------------------------------------------------------------------------


@SYSTEM
def test_an_agents_restart_leaves_jobs_alive(is_system: bool, tmp_path: Path) -> None:
    """Promise 13."""
    settings = units(planned(tmp_path, text="", is_system=is_system))["agent"]
    assert settings["KillMode"] == ["process"]
    assert settings["Delegate"] == ["yes"]
    assert settings["DelegateSubgroup"] == [AGENT_LEAF]
    assert settings["OOMPolicy"] == ["continue"], "one job out of memory must not stop the agent"
    assert settings["TasksMax"] == ["infinity"], "jobs count towards the unit's tasks"
    assert not {"ExecStop", "ExecStopPost", "PartOf", "BindsTo", "Requires"} & settings.keys()
    assert [key for key in settings if BREAKS_JOBS.fullmatch(key)] == [], "jobs inherit a sandbox"
    if is_system:
        assert settings["RuntimeDirectoryPreserve"] == ["yes"], "sockets of running jobs outlive the agent"
        assert "User" not in settings


@SYSTEM
def test_an_agent_waits_for_what_cuda_needs(is_system: bool, tmp_path: Path) -> None:
    agent = units(planned(tmp_path, text="", is_system=is_system))["agent"]
    cuda = {f"nvidia-{name}.service" for name in ("persistenced", "fabricmanager", "imex", "cdi-refresh")}
    waits = set(" ".join(agent["After"]).split())
    assert waits & cuda == (cuda if is_system else set()), "a user's services cannot wait for the system's"


@SYSTEM
def test_services_come_back(is_system: bool, tmp_path: Path) -> None:
    for settings in units(planned(tmp_path, text="", is_system=is_system)).values():
        assert settings["Restart"] == ["always"]
        assert settings["StartLimitIntervalSec"] == ["0"]
        assert settings["WantedBy"] == ["multi-user.target" if is_system else "default.target"]


def test_a_machines_controller_is_locked_in_and_not_root(tmp_path: Path) -> None:
    settings = units(planned(tmp_path, text=""))["controller"]
    assert settings["User"] == ["cotenant"]
    assert settings["CapabilityBoundingSet"] == [""]
    assert settings["NoNewPrivileges"] == ["yes"]
    assert settings["ProtectSystem"] == ["strict"]
    assert (settings["StateDirectoryMode"], settings["RuntimeDirectoryMode"]) == (["0700"], ["0755"])


def test_units_agree_with_the_example_settings(tmp_path: Path) -> None:
    text = (DEPLOY / "controller.toml").read_text() + (DEPLOY / "agent.toml").read_text()
    found = units(planned(tmp_path, "controller", "agent", text=text))
    assert found["controller"]["ExecStart"] == [f"{PROGRAM} controller"], "all is in the file"
    assert found["controller"]["StateDirectory"] == ["cotenant-controller"]
    assert f"COTENANT_CONFIG={tmp_path}/own.toml" in found["agent"]["Environment"]
    assert "RuntimeDirectory" not in found["controller"]


def test_a_journal_that_two_share_makes_a_standby_of_the_second(tmp_path: Path) -> None:
    text = '[controller]\nendpoint = "tcp://0.0.0.0:7070"\nkeys_dir = "/k"\njournal = "postgresql://a@db/c"'
    (start,) = units(planned(tmp_path, text=text))["controller"]["ExecStart"]
    assert start.endswith(" --standby")


def test_a_state_folder_elsewhere_can_be_written(tmp_path: Path) -> None:
    text = '[controller]\nendpoint = "ipc:///run/x/c.sock"\nstate_dir = "/srv/co tenant"'
    settings = units(planned(tmp_path, text=text))["controller"]
    assert settings["ReadWritePaths"] == ['"/srv/co tenant"'] and "StateDirectory" not in settings


def test_a_path_means_itself_in_a_unit() -> None:
    assert unit_word("/opt/a b/%h$HOME") == '"/opt/a b/%%h$$HOME"'
    assert unit_word("/opt/cotenant") == "/opt/cotenant"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@SYSTEM
def test_systemd_knows_every_setting(is_system: bool, tmp_path: Path) -> None:
    plan = planned(tmp_path, text="", is_system=is_system)
    files = []
    for daemon in plan.daemons:
        # With what exists everywhere: a program and a user that are not installed are no fault of the unit.
        text = unit_text(daemon, plan.context).replace(PROGRAM, "/bin/true")
        files.append(tmp_path / unit_name(daemon))
        files[-1].write_text(re.sub(r"(?m)^(User|Group)=.*$", "", text))
    verify = ["systemd-analyze", *([] if is_system else ["--user"]), "verify", "--man=no", *map(str, files)]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(verify, capture_output=True, text=True, timeout=within_s(60), check=False, env=env)
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "cotenant-" in line]
    assert [line for line in ours if "DelegateSubgroup" not in line] == []  # Since 254.


# --- What is asked of systemd -----------------------------------------------------------------------


class Home:
    """A user's home with a stand-in for systemctl on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.units = folder / "config" / "systemd" / "user"
        self.env = {
            "PATH": f"{put_on_path(folder / 'bin')}:/usr/bin:/bin",
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "COTENANT_LOCK_DIR": str(folder / "locks"),
            "SYSTEMCTL_STATE": str(folder),
        }
        (folder / "run").mkdir(mode=0o700)
        (folder / "config" / "cotenant").mkdir(parents=True)
        (folder / "config" / "cotenant" / "cotenant.toml").write_text('[agent]\ndevices = "cpu:1"\n')

    def __call__(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cotenant.controller.cli.main", "service", *words]
        return subprocess.run(
            command,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=within_s(120),
            check=False,
        )

    def asked(self) -> list[str]:
        """What systemctl was asked since the last time."""
        path = self.folder / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [line for line in lines if " show " not in line]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.setenv("SYSTEMCTL_STATE", str(tmp_path))
    yield Home(tmp_path)
    for daemon in ("agent", "controller", "web"):
        if pid := pid_of(unit_name(daemon)):
            os.kill(pid, signal.SIGKILL)


def test_a_dry_run_prints_units_and_touches_nothing(home: Home) -> None:
    done = home("install", "--user", "--dry-run")
    assert done.returncode == 0 and done.stdout.count("ExecStart=") == 3, done
    assert home.asked() == [] and not home.units.exists()


def test_units_are_enabled_for_the_next_boot_alone(home: Home) -> None:
    done = home("install", "--user", "--no-start", "--controller", "--agent")
    assert done.returncode == 0, done
    both = "cotenant-controller.service cotenant-agent.service"
    assert home.asked() == [f"--user enable {both}"]
    assert sorted(path.name for path in home.units.iterdir()) == sorted(both.split()), "nothing half written"


def test_installed_once_more_nothing_changes_and_a_changed_unit_starts_again(home: Home) -> None:
    first = home("install", "--user", "--agent", "--controller")
    assert first.returncode == 0 and "running: controller, agent" in first.stdout, first
    assert "loginctl enable-linger" in first.stdout
    assert home.asked()[1:] == [f"--user restart cotenant-{name}.service" for name in ("controller", "agent")]
    running = pid_of("cotenant-controller.service")

    again = home("install", "--user", "--agent", "--controller")
    assert again.returncode == 0 and again.stdout.count("unchanged") == 2, again
    assert home.asked()[1:] == [f"--user start cotenant-{name}.service" for name in ("controller", "agent")]
    assert pid_of("cotenant-controller.service") == running

    unit = home.units / "cotenant-agent.service"
    unit.write_text(unit.read_text() + "# of the version before\n")
    assert home("install", "--user", "--agent", "--controller").returncode == 0
    assert home.asked()[1:] == [
        "--user start cotenant-controller.service",
        "--user restart cotenant-agent.service",
    ]

    gone = home("uninstall", "--user")
    assert gone.returncode == 0 and not list(home.units.iterdir()), gone
    assert home.asked() == ["--user disable --now cotenant-agent.service cotenant-controller.service"]
    assert not pid_of("cotenant-controller.service")


def test_containers_that_systemd_keeps_do_not_lose_their_gpus_by_an_installation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, system = tmp_path / "machine", ServiceManager(is_system=True)
    for pid, cgroup, top in (
        (10, "0::/system.slice/docker-3f.scope", "gpus"),
        (11, "0::/system.slice/docker-77.scope", "plain"),
        (12, "0::/docker/99", "gpus"),  # Docker's own driver of control groups: systemd leaves them alone.
        (13, "0::/user.slice/session-1.scope", ""),
    ):
        (root / f"proc/{pid}").mkdir(parents=True)
        (root / f"proc/{pid}/cgroup").write_text(f"{cgroup}\n")
        (root / f"proc/{pid}/root").symlink_to(root / top)
    for path in ("gpus/dev/nvidiactl", "dev/nvidiactl", "plain/dev/null"):
        (root / path).parent.mkdir(parents=True)
        (root / path).touch()
    assert system.reload_words(root) == ["--no-reload"]
    assert "for docker-3f.scope would lose their GPUs" in capsys.readouterr().err
    assert ServiceManager(is_system=False).reload_words(root) == [], "a user's systemd has no device rules"
    (root / "dev/char").mkdir()
    (root / "dev/char/195:255").symlink_to("../nvidiactl")
    assert system.reload_words(root) == []


def test_a_unit_of_somebody_else_stays(home: Home) -> None:
    home.units.mkdir(parents=True)
    (home.units / "cotenant-agent.service").write_text("[Service]\nExecStart=/mine\n")
    done = home("install", "--user", "--no-start")
    assert done.returncode == 1 and "was written by somebody else" in done.stderr
    assert [path.name for path in home.units.iterdir()] == ["cotenant-agent.service"], (
        "nor is any other written"
    )
    assert home("uninstall", "--user").returncode == 3
    (home.units / "cotenant-agent.service").write_text(f"{MARK}\n")
    assert home("install", "--user", "--no-start").returncode == 0


@pytest.mark.parametrize("verb", [("status",), ("logs", "-f")])
def test_nothing_is_asked_about_services_that_are_not_there(home: Home, verb: tuple[str, ...]) -> None:
    done = home(*verb, "--user")
    assert done.returncode == 3 and "no service of cotenant is installed" in done.stderr


def test_logs_and_status_are_systemds_own(home: Home) -> None:
    home("install", "--user", "--no-start", "--agent")
    (home.folder / "bin" / "journalctl").symlink_to("/bin/echo")
    said = home("logs", "--user", "-n", "7").stdout
    assert said == "--user --no-pager --lines=7 --unit=cotenant-agent.service\n"
    home.asked()
    assert home("status", "--user").returncode == 0
    assert home.asked() == ["--user --no-pager status cotenant-agent.service"]


@SYSTEM
def test_without_systemd_it_says_what_to_run_instead(home: Home, is_system: bool) -> None:
    (home.folder / "bin" / "systemctl").write_text("#!/bin/sh\necho System has not been booted >&2; exit 1\n")
    done = home("install", "--system" if is_system else "--user")
    if is_system and os.geteuid() != 0:
        assert done.returncode == 4 and "only root may; sudo" in done.stderr
        return
    assert done.returncode == 1 and "no systemd runs services here" in done.stderr
    assert ("--dry-run" if is_system else "@reboot") in done.stderr
    assert not home.units.exists()


def test_settings_that_somebody_wrote_are_never_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "cotenant.toml"
    mine.write_text("[limits]\nuser_jobs = 7\n")
    with pytest.raises(Problem, match="was written by somebody else"):
        write_files({tmp_path / "cotenant-agent.service": MARK, mine: "[controller]\n"})
    assert [path.name for path in tmp_path.iterdir()] == ["cotenant.toml"]
    assert "user_jobs = 7" in mine.read_text()


def test_what_root_runs_is_roots_alone_to_change_and_everybodys_to_read(tmp_path: Path) -> None:
    check_program(Path("/bin/sh"))
    program = tmp_path / "cotenant"
    program.touch()
    tmp_path.chmod(0o777)
    with pytest.raises(Problem, match=r"may change|cannot reach"):
        check_program(program)
