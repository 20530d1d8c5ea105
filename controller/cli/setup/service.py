"""`cotenant service`: systemd units for what this host is; `install`, `status`, `logs`, `uninstall`.

Rule: it replaces and removes only units that it has written, each whole or not at all, and what it has done
once it does again without effect. Jobs are left alone: the agent's unit ends the agent alone.
"""

from __future__ import annotations

import os
import pwd
import shlex
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from cotenant.controller.cli.frame import daemons
from cotenant.controller.cli.frame.command import group, option
from cotenant.controller.cli.setup import owners
from cotenant.controller.cli.setup.host_services import SETTINGS_FILE, HostServices, plan_services
from cotenant.controller.cli.setup.units import ACCOUNT, DAEMONS, MARK, unit_name, unit_text
from cotenant.controller.present.problem import FAILED, OK, Problem
from cotenant.controller.present.screen import say, tell
from cotenant.controller.system.endpoint import SYSTEM_ENDPOINT
from cotenant.controller.system.files import write_whole
from cotenant.controller.system.keys import CONTROLLER_KEY, init_cluster
from cotenant.controller.wire import decode_text

SYSTEM_UNITS: Final = Path("/etc/systemd/system")
LINGERING: Final = "/var/lib/systemd/linger"
READY_WITHIN_S: Final = 240.0
"""A driver that is being loaded may take three minutes."""
LOOK_EVERY_S: Final = 0.1

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
    reload: Annotated[
        bool, option("--reload", help="Reload systemd although running containers lose their GPUs by it.")
    ] = False,
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
    manager = chosen_manager(system, user)
    asked = [each for each, is_asked in zip(DAEMONS, (controller, agent, web), strict=True) if is_asked]
    plan = plan_services(
        asked, is_system=manager.is_system, users=users, program=own_program(), environ=os.environ
    )
    files = {SETTINGS_FILE: plan.settings_text} if plan.settings_text else {}
    files |= {manager.folder / unit_name(each): unit_text(each, plan.context) for each in plan.daemons}
    for note in plan.notes:
        tell(f"note: {note}")
    if dry_run:
        say("\n".join(f"# {path}\n{text}" for path, text in files.items()).rstrip())
        return OK
    manager.check(f"writes {SYSTEM_UNITS}")
    if manager.is_system:
        python = Path(sys.executable)
        check_program(Path(own_program()), python, python.resolve(), Path(__file__))
    end_background_controller(plan)
    changed = [path.name for path in write_files(files)]
    prepare_account(plan)
    names = [unit_name(each) for each in plan.daemons]
    # It reloads systemd by itself. Without that, new units are read as they start.
    manager.ask("enable", *([] if reload else manager.reload_words()), *names)
    for name in [] if no_start else names:
        manager.ask("restart" if name in changed else "start", name)
    return OK if no_start else wait_until_ready(plan)


@service.part("status")
def status(system: SystemFlag = False, user: OwnFlag = False) -> int:
    """What systemd says of them; its exit code: 0 if all run."""
    manager = chosen_manager(system, user)
    return manager.become("systemctl", "--no-pager", "status", *manager.installed_units())


@service.part("logs")
def logs(
    follow: Annotated[bool, option("-f", "--follow", help="Go on with what comes.")] = False,
    lines: Annotated[int, option("-n", "--lines", metavar="N", min=0, help="The last N lines.")] = 100,
    system: SystemFlag = False,
    user: OwnFlag = False,
) -> int:
    """What controller, agent and page have said, from the journal of systemd."""
    manager = chosen_manager(system, user)
    words = [f"--lines={lines}", *(f"--unit={name}" for name in manager.installed_units())]
    return manager.become("journalctl", "--no-pager", *words, *(["--follow"] if follow else []))


@service.part("uninstall")
def uninstall(system: SystemFlag = False, user: OwnFlag = False) -> int:
    """Stop and remove the units. Jobs that run go on; settings, keys and journal stay."""
    manager = chosen_manager(system, user)
    manager.check(f"removes files of {SYSTEM_UNITS}")
    names = manager.installed_units()
    manager.ask("disable", "--now", *manager.reload_words(), *reversed(names))
    for name in names:
        (manager.folder / name).unlink()
        say(f"removed {manager.folder / name}")
    say("jobs that ran go on; settings, keys, journal and checkpoints are where they were")
    return OK


# --- systemd ----------------------------------------------------------------------------------------


class ServiceManager(NamedTuple):
    """The systemd of the machine, or the one of a user."""

    is_system: bool

    @property
    def folder(self) -> Path:
        """Where its units are."""
        config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return SYSTEM_UNITS if self.is_system else Path(config) / "systemd" / "user"

    def reload_words(self, root: Path = Path("/")) -> list[str]:
        """`--no-reload` where running containers would lose their GPUs by a reload; they are told.

        systemd then sets the device rules of its scopes anew, and finds only files with a link in /dev/char.
        """
        if not self.is_system or any((root / "dev/char").glob("195:*")):  # NVIDIA's major number.
            return []
        cut: set[str] = set()
        for process in (root / "proc").glob("[0-9]*"):
            with suppress(OSError):  # It has ended.
                scope = (process / "cgroup").read_bytes().strip().rpartition(b"/")[2].decode(errors="replace")
                has_gpus = (process / "root/dev/nvidiactl").exists() and not (process / "root").samefile(root)
                cut |= {scope} if has_gpus and scope.endswith(".scope") else set()
        if cut:
            tell(
                f"note: systemd is not reloaded, for {', '.join(sorted(cut))} would lose their GPUs by it: "
                "/dev/char has no links to them (nvidia-ctk system create-dev-char-symlinks --create-all). "
                "Changed units count after the next boot, or with `cotenant service install --reload`"
            )
        return ["--no-reload"] if cut else []

    def installed_units(self) -> list[str]:
        """The names of our units that are there. Raises Problem: none is."""
        paths = [path for each in DAEMONS if (path := self.folder / unit_name(each)).is_file()]
        found = [path.name for path in paths if path.read_bytes().startswith(MARK.encode())]
        if not found:
            other = "--user" if self.is_system else "--system"
            raise Problem(
                "not-found", f"no service of cotenant is installed in {self.folder}", f"look with {other}"
            )
        return found

    def words(self, program: str, *words: str) -> list[str]:
        return [program, *([] if self.is_system else ["--user"]), *words]

    def become(self, program: str, *words: str) -> int:
        """Becomes systemd's own command, which says it best."""
        sys.stdout.flush()
        try:
            os.execvp(program, self.words(program, *words))
        except OSError as error:
            raise Problem("failed", f"{program}: {error.strerror}", "cotenant nodes") from None

    def ask(self, *words: str) -> None:
        """Has `systemctl` do something. Raises Problem with what it said."""
        command = self.words("systemctl", *words)
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            why = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        except OSError as error:
            raise Problem("failed", f"systemctl: {error.strerror}") from None
        if done.returncode != 0:
            raise Problem("failed", f"`{shlex.join(command)}`: {''.join(why)}")

    def check(self, does: str) -> None:
        """Raises Problem: it is for root alone, or no systemd answers; with what to do instead."""
        if self.is_system and os.geteuid() != 0:
            words = shlex.join(["sudo", own_program(), *sys.argv[1:]])
            raise Problem("not-allowed", f"--system {does}, which only root may", words)
        try:
            self.ask("show", "--property=Version")
        except Problem as problem:
            instead = f"`cotenant up` in tmux, or in `crontab -e` a line: @reboot {own_program()} up"
            if self.is_system:
                instead = "at boot, as root, the ExecStart lines of `cotenant service install --dry-run`"
            raise Problem("failed", f"no systemd runs services here: {problem.message}", instead) from None


def chosen_manager(system: bool, user: bool) -> ServiceManager:
    """The machine's, where that is asked for, or root asks for nothing."""
    if system and user:
        raise Problem("usage", "--system and --user exclude each other", "`cotenant service --help`")
    return ServiceManager(system or (not user and os.geteuid() == 0))


# --- What must be true first ------------------------------------------------------------------------


def own_program() -> str:
    """The `cotenant` of this installation: the same path after an upgrade."""
    return os.path.join(sysconfig.get_path("scripts"), "cotenant")


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
        if text != files[path] and not text.startswith(MARK):
            todo = f"move it away: mv {path} {path}.before"
            if path == SETTINGS_FILE:
                todo = f'add below [controller]: endpoint = "{SYSTEM_ENDPOINT}" and users = "*"'
            raise Problem("refused", f"{path} was written by somebody else", todo)
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


def wait_until_ready(plan: HostServices) -> int:
    """Waits until a controller of this host answers and its agent has joined; says what to do next."""
    tell(f"waiting for {' and '.join(plan.daemons)}, at most {READY_WITHIN_S:.0f} s")
    if "controller" in plan.daemons and not daemons.wait_until(
        lambda: is_ready(plan), READY_WITHIN_S, LOOK_EVERY_S
    ):
        tell(f"{plan.endpoint} does not answer, or {plan.host} has not joined: cotenant service logs")
        return FAILED
    say(f"running: {', '.join(plan.daemons)}; try `cotenant nodes`, or `cotenant doctor`")
    if not plan.context.is_system and not Path(LINGERING, pwd.getpwuid(os.getuid()).pw_name).exists():
        say("to keep them when you log out, and start them at boot, once: loginctl enable-linger")
    return OK


def is_ready(plan: HostServices) -> bool:
    """Whether the controller answers and, if it should, this host has joined."""
    joined = daemons.joined_hosts(plan.endpoint)
    return joined is not None and ("agent" not in plan.daemons or plan.host in {each.host for each in joined})
