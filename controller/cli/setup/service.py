"""`cotenant service`: systemd units for what this host is; `install`, `status`, `logs`, `uninstall`.

Rule: it replaces and removes only units that it has written, each whole or not at all, and what it has done
once it does again without effect. Jobs are left alone: the agent's unit ends the agent alone.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Annotated, Final

from cotenant.controller.cli.frame.command import group, option
from cotenant.controller.cli.setup import owners
from cotenant.controller.cli.setup.host_services import SETTINGS_FILE, HostServices, plan_services
from cotenant.controller.cli.setup.units import ACCOUNT, DAEMONS, MARK, unit_name, unit_text
from cotenant.controller.client.asking import asking
from cotenant.controller.domain import HostState
from cotenant.controller.present.problem import FAILED, OK, Problem
from cotenant.controller.present.screen import say, tell
from cotenant.controller.system.files import write_whole
from cotenant.controller.system.keys import CONTROLLER_KEY, init_cluster
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import decode_text

SYSTEM_UNITS: Final = Path("/etc/systemd/system")
READY_WITHIN_S: Final = 60.0
LOOK_EVERY_S: Final = 0.1
TELL_AFTER_S: Final = 2.0

SystemFlag = Annotated[
    bool,
    option("--system", help="Of the whole machine, for all its users. What root gets without an option."),
]
OwnFlag = Annotated[
    bool, option("--user", help="Of you alone, without root. What you get without an option.")
]


@group()
def service() -> None:
    """Controller, agent and page as services of systemd, there after a reboot.

    \b
    For example:
      cotenant service install --system    as root: one machine, for all its accounts
      cotenant service install             for yourself, without root
      cotenant service logs -f
    """


@service.part("install")
def install(
    system: SystemFlag = False,
    user: OwnFlag = False,
    controller: Annotated[bool, option("--controller", help="Run the controller.")] = False,
    agent: Annotated[bool, option("--agent", help="Run the agent.")] = False,
    web: Annotated[bool, option("--web", help="Run your page (with --user).")] = False,
    users: Annotated[
        str, option("--group", metavar="GROUP", help="Only its members may use this machine.")
    ] = "",
    no_start: Annotated[bool, option("--no-start", help="Enable them for the next boot only.")] = False,
    dry_run: Annotated[
        bool, option("--dry-run", help="Print what would be written, and do nothing.")
    ] = False,
) -> int:
    """Write, enable and start the units for what this host is by its configuration.

    Without settings that is a single machine: with --system a controller and an agent for all its accounts,
    where each acts as who they are and nobody needs a key; with --user a controller, an agent and, if it is
    installed, the page, for you. A host whose controller is elsewhere gets an agent. --controller, --agent
    and --web name exactly what to run. A unit that has changed is written and started again; jobs go on.

    \b
    For example:
      cotenant service install --system --group gpu
      cotenant service install --user --web
      cotenant service install --dry-run
    """
    is_system = chosen_scope(system, user)
    asked = [each for each, is_asked in zip(DAEMONS, (controller, agent, web), strict=True) if is_asked]
    plan = plan_services(asked, is_system=is_system, users=users, program=own_program(), environ=os.environ)
    units = {unit_folder(is_system) / unit_name(each): unit_text(each, plan.context) for each in plan.daemons}
    files = {**({SETTINGS_FILE: plan.settings_text} if plan.settings_text else {}), **units}
    if dry_run:
        say("\n".join(f"# {path}\n{text}" for path, text in files.items()).rstrip())
        for note in plan.notes:
            tell(f"note: {note}")
        return OK
    check_root(is_system, "writes /etc/systemd/system")
    check_systemd(is_system)
    if is_system:
        check_program(*program_files())
    end_background_controller(plan)
    changed = write_files(files)
    prepare_account(plan)
    start_units(plan, is_system, {path.name for path in changed}, at_once=not no_start)
    for note in plan.notes:
        tell(f"note: {note}")
    return OK if no_start else wait_until_ready(plan, is_system)


@service.part("status")
def status(system: SystemFlag = False, user: OwnFlag = False) -> int:
    """What systemd says of them; its exit code: 0 if all run."""
    is_system = chosen_scope(system, user)
    return run_systemd("systemctl", is_system, "--no-pager", "status", *installed_units(is_system))


@service.part("logs")
def logs(
    follow: Annotated[bool, option("-f", "--follow", help="Go on with what comes.")] = False,
    lines: Annotated[int, option("-n", "--lines", metavar="N", min=0, help="The last N lines.")] = 100,
    system: SystemFlag = False,
    user: OwnFlag = False,
) -> int:
    """What controller, agent and page have said, from the journal of systemd."""
    is_system = chosen_scope(system, user)
    named = [word for name in installed_units(is_system) for word in ("--unit", name)]
    return run_systemd(
        "journalctl",
        is_system,
        "--no-pager",
        "--lines",
        str(lines),
        *(["--follow"] if follow else []),
        *named,
    )


@service.part("uninstall")
def uninstall(system: SystemFlag = False, user: OwnFlag = False) -> int:
    """Stop and remove the units. Jobs that run go on; settings, keys and journal stay."""
    is_system = chosen_scope(system, user)
    check_root(is_system, "removes files of /etc/systemd/system")
    check_systemd(is_system)
    names = installed_units(is_system)
    must_run(is_system, "disable", "--now", *reversed(names))
    for name in names:
        (unit_folder(is_system) / name).unlink()
        say(f"removed {unit_folder(is_system) / name}")
    must_run(is_system, "daemon-reload")
    say("jobs that ran go on; settings, keys, journal and checkpoints are where they were")
    return OK


# --- What must be true first ------------------------------------------------------------------------


def chosen_scope(system: bool, user: bool) -> bool:
    """Whether the machine's units are meant, not the user's."""
    if system and user:
        raise Problem("usage", "--system and --user exclude each other", "`cotenant service --help`")
    return system or (not user and os.geteuid() == 0)


def unit_folder(is_system: bool) -> Path:
    if is_system:
        return SYSTEM_UNITS
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "systemd" / "user"


def own_program() -> str:
    """The `cotenant` of this installation: the same path after an upgrade."""
    return os.path.join(sysconfig.get_path("scripts"), "cotenant")


def check_root(is_system: bool, does: str) -> None:
    if is_system and os.geteuid() != 0:
        words = shlex.join(["sudo", own_program(), *sys.argv[1:]])
        raise Problem("not-allowed", f"--system {does}, which only root may", words)


def check_systemd(is_system: bool) -> None:
    """Raises Problem with what to run instead where no systemd answers."""
    try:
        asked = systemd_words("systemctl", is_system, "show", "--property=Version")
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        why = done.stderr.strip().splitlines()[-1:] or ["it does not answer"]
    except OSError as error:
        why = [f"systemctl: {error.strerror}"]
    up = f"@reboot {own_program()} up"
    instead = f"`cotenant up` in tmux, and at every boot: (crontab -l; echo '{up}') | crontab -"
    if is_system:
        instead = (
            "at every boot, as root, the ExecStart lines of: cotenant service install --system --dry-run"
        )
    raise Problem("failed", f"there is no systemd here to run services ({why[0]})", instead)


def program_files() -> tuple[Path, ...]:
    """What a service of ours executes, by the names that lead there."""
    return Path(own_program()), Path(sys.executable), Path(sys.executable).resolve(), Path(__file__).resolve()


def check_program(*files: Path) -> None:
    """What root runs for others must be for others to execute, and for root alone to change.

    Raises:
        Problem: it lies where that does not hold.
    """
    elsewhere = (
        "for all: sudo env UV_TOOL_DIR=/opt/cotenant UV_TOOL_BIN_DIR=/usr/local/bin uv tool install "
        "--python /usr/bin/python3 WHEEL; or sudo pipx install --global WHEEL"
    )
    for path in dict.fromkeys(folder for each in files for folder in (*reversed(each.parents), each)):
        found = path.stat()
        if found.st_uid != 0 or (found.st_mode & 0o022 and not found.st_mode & 0o1000):
            raise Problem("refused", f"others than root may change {path}, which root would run", elsewhere)
        if not found.st_mode & (0o001 if path.is_dir() else 0o004):
            raise Problem("refused", f"other users cannot reach {path}, which runs their jobs", elsewhere)


def end_background_controller(plan: HostServices) -> None:
    """Two controllers cannot share a socket: the one that `run` started makes room, with its journal."""
    if "controller" not in plan.daemons or (found := owners.owner(plan.endpoint)) is None:
        return
    if found.verb != "run":
        raise Problem("refused", f"`cotenant up` (pid {found.pid}) keeps a controller here", "cotenant down")
    tell(f"taking over what `cotenant run` started (pid {found.pid}); jobs that run go on")
    owners.end(found)


# --- Doing it ---------------------------------------------------------------------------------------


def write_files(files: dict[Path, str]) -> list[Path]:
    """Writes those that differ, and returns them.

    Raises:
        Problem: one is not ours to replace, or cannot be written.
    """
    there = {path: decode_text(path.read_bytes()) for path in files if path.exists()}
    for path, text in there.items():
        if path.suffix == ".service" and not text.startswith(MARK):
            raise Problem(
                "refused", f"{path} was written by somebody else", f"move it away: mv {path} {path}.before"
            )
    changed = [path for path, text in files.items() if there.get(path) != text]
    for path in files:
        if path not in changed:
            say(f"unchanged {path}")
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, files[path].encode(), mode=0o644)
        except OSError as error:
            raise Problem("failed", f"{path}: {error.strerror}") from None
        say(f"wrote {path}")
    return changed


def prepare_account(plan: HostServices) -> None:
    """The system user of the machine's controller, and keys that are its own; what is there stays."""
    if not plan.context.is_system or "controller" not in plan.daemons:
        return
    try:
        account = pwd.getpwnam(ACCOUNT)
    except KeyError:
        words = ["useradd", "--system", "--user-group", "--home-dir", "/nonexistent", "--no-create-home"]
        done = subprocess.run(
            [*words, "--shell", "/usr/sbin/nologin", ACCOUNT], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise Problem(
                "failed", f"no system user {ACCOUNT} could be made: {done.stderr.strip()}"
            ) from None
        account = pwd.getpwnam(ACCOUNT)
        say(f"made the system user {ACCOUNT}")
    if plan.keys_dir is not None:
        if not (plan.keys_dir / CONTROLLER_KEY).exists():
            say(f"wrote {init_cluster(plan.keys_dir)}")
        for path in (plan.keys_dir, *plan.keys_dir.iterdir()):
            os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


def start_units(plan: HostServices, is_system: bool, changed: set[str], *, at_once: bool) -> None:
    names = [unit_name(each) for each in plan.daemons]
    must_run(is_system, "daemon-reload")
    must_run(is_system, "enable", *names)
    for name in names if at_once else ():
        must_run(is_system, "restart" if name in changed else "start", name)


def wait_until_ready(plan: HostServices, is_system: bool) -> int:
    """Waits until the controller answers and this host has joined; says what to do next."""
    asked_s = time.monotonic()
    is_told = False
    what = "the controller" if "controller" in plan.daemons else "the agent's controller"
    while (waited_s := time.monotonic() - asked_s) < READY_WITHIN_S:
        try:
            with asking(plan.endpoint, timeout_s=2.0) as client:
                nodes = client.ask(wire.ListNodes()).nodes
            what = f"the agent of {plan.host}"
            if "agent" not in plan.daemons or any(
                node.host == plan.host and node.state is not HostState.LOST for node in nodes
            ):
                break
        except Problem as problem:
            if problem.code == "not-allowed":
                break  # An agent's host may have no key of a person, and then nothing more is known here.
        if not is_told and waited_s > TELL_AFTER_S:
            tell(f"waiting for {what}, at most {READY_WITHIN_S:.0f} s")
            is_told = True
        time.sleep(LOOK_EVERY_S)
    else:
        tell(f"{what} does not answer yet; see: cotenant service logs")
        return FAILED
    say(f"running: {', '.join(plan.daemons)}; try `cotenant nodes`")
    if not is_system and not Path("/var/lib/systemd/linger", pwd.getpwuid(os.getuid()).pw_name).exists():
        say("to keep them when you log out, and start them at boot, once: loginctl enable-linger")
    return OK


def installed_units(is_system: bool) -> list[str]:
    """The names of our units that are there. Raises Problem: none is."""
    folder = unit_folder(is_system)
    paths = [folder / unit_name(each) for each in DAEMONS]
    found = [path.name for path in paths if path.is_file() and path.read_bytes().startswith(MARK.encode())]
    if not found:
        other = "--user" if is_system else "--system"
        raise Problem("not-found", f"no service of cotenant is installed in {folder}", f"look with {other}")
    return found


def systemd_words(program: str, is_system: bool, *words: str) -> list[str]:
    return [program, *([] if is_system else ["--user"]), *words]


def run_systemd(program: str, is_system: bool, *words: str) -> int:
    """Becomes systemd's own command, which says it best."""
    command = systemd_words(program, is_system, *words)
    if shutil.which(program) is None:
        raise Problem("failed", f"there is no {program} here", "cotenant nodes")
    sys.stdout.flush()
    os.execvp(program, command)


def must_run(is_system: bool, *words: str) -> None:
    command = systemd_words("systemctl", is_system, *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Problem("failed", f"`{shlex.join(command)}`: {done.stderr.strip() or done.stdout.strip()}")
