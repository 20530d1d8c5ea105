"""The systemd unit of each daemon, as text.

Rule: pure, and the only place where a unit is written. A unit's sandbox is inherited by all that its service
starts, so the controller, which starts no jobs, is locked in, and the agent has no sandbox at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

DaemonName = Literal["controller", "agent", "web"]

DAEMONS: Final[tuple[DaemonName, ...]] = ("controller", "agent", "web")
"""In the order in which they start."""
MARK: Final = "# Written by `cotenant service install`"
"""How every unit of ours begins; no other file is replaced or removed."""
ACCOUNT: Final = "cotenant"
"""The system user that the controller of a machine runs as."""


def unit_name(daemon: DaemonName) -> str:
    return f"cotenant-{daemon}.service"


@dataclass(frozen=True, kw_only=True)
class UnitContext:
    """What units depend on besides their daemon."""

    program: str
    """The path of `cotenant` where it is installed."""
    is_system: bool
    """For the machine, started as root; else for one user's own service manager."""
    environment: Mapping[str, str]
    """Variables that the daemons need, as COTENANT_CONFIG."""
    options: Mapping[DaemonName, tuple[str, ...]]
    """Words behind `cotenant DAEMON`."""
    state_dir: str = ""
    """The controller's, where it is not the machine's usual one."""
    runtime_name: str = ""
    """The folder of /run with the controller's socket; empty: it has none there."""


def unit_text(daemon: DaemonName, context: UnitContext) -> str:
    """The whole unit of a daemon."""
    words = (context.program, daemon, *context.options.get(daemon, ()))
    lines = [
        f"{MARK}, which replaces it: changes belong into `systemctl edit`.",
        "",
        "[Unit]",
        f"Description=cotenant {daemon}",
        *(_AFTER_NETWORK if context.is_system else ()),
        *([_AFTER_CUDA] if context.is_system and daemon == "agent" else ()),
        *(["After=cotenant-controller.service"] if daemon != "controller" else ()),
        "# It recovers in seconds, and jobs need it back: always try again.",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={' '.join(map(unit_word, words))}",
        "Restart=always",
        "RestartSec=2",
        "TimeoutStopSec=30",
        "Environment=PYTHONUNBUFFERED=1",
        *(f"Environment={unit_value(f'{name}={value}')}" for name, value in context.environment.items()),
        *_BODIES[daemon].splitlines(),
        *(_system_lines(daemon, context) if context.is_system else ()),
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if context.is_system else 'default.target'}",
    ]
    return "\n".join(lines) + "\n"


def unit_word(text: str) -> str:
    """One word of a unit's command line, in which systemd replaces `$NAME` too."""
    return unit_value(text.replace("$", "$$"))


def unit_value(text: str) -> str:
    """One word of a unit: systemd replaces `%x`, and splits at blanks."""
    escaped = text.replace("\\", "\\\\").replace("%", "%%").replace('"', '\\"')
    return f'"{escaped}"' if escaped != text or any(each in " \t';" for each in text) else text


_AFTER_NETWORK: Final = (
    "Wants=network-online.target",
    "After=network-online.target remote-fs.target nss-user-lookup.target",
)
_AFTER_CUDA: Final = (
    "After=nvidia-persistenced.service nvidia-fabricmanager.service nvidia-imex.service "
    "nvidia-cdi-refresh.service"
)
"""Where they are installed. NVML answers before they are up, and on hosts with NVSwitches CUDA does not."""
_BODIES: Final[dict[DaemonName, str]] = {
    "controller": """\
# Its children are short calculations, which should end with it.
KillMode=mixed
LimitNOFILE=65536""",
    "agent": """\
# A restart or an upgrade of the agent must leave jobs alone. Only the agent's own process is ended; the
# supervisors run on in cgroups of their own and are adopted by the next agent. DelegateSubgroup= is for
# systemd 254 and newer; older ones ignore it with a warning, and attempts then live outside this unit.
KillMode=process
Delegate=yes
DelegateSubgroup=agent
# A job that runs out of memory is that job's end, not the agent's.
OOMPolicy=continue
TasksMax=infinity
# Jobs inherit these limits: pinned host memory for NCCL, files for data loaders, SIGPIPE as in a shell.
LimitMEMLOCK=infinity
LimitNOFILE=65536:1048576
IgnoreSIGPIPE=no
# There is deliberately no sandbox here: what a unit forbids its service it forbids the jobs as well.""",
    "web": """\
KillMode=mixed
NoNewPrivileges=yes""",
}

_AGENT_LINES: Final = """\
# Sockets and records of running jobs are here, so they stay when the agent stops. 0711: a job's user
# reaches its own attempt's folder, and can list nobody's.
RuntimeDirectory=cotenant
RuntimeDirectoryMode=0711
RuntimeDirectoryPreserve=yes
StateDirectory=cotenant-agent
StateDirectoryMode=0711"""

_SANDBOX: Final = """\
UMask=0077
# The controller starts no jobs, so it can be locked in.
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service"""


def _system_lines(daemon: DaemonName, context: UnitContext) -> list[str]:
    """What only the unit of a whole machine has: an account, folders, a sandbox."""
    if daemon == "agent":
        return _AGENT_LINES.splitlines()
    lines = [f"User={ACCOUNT}", f"Group={ACCOUNT}"]
    if not context.state_dir:
        lines += ["# The journal is here, on a local disk.", "StateDirectory=cotenant-controller"]
        lines += ["StateDirectoryMode=0700"]
    else:
        lines += [f"ReadWritePaths={unit_value(context.state_dir)}"]
    if context.runtime_name:
        lines += ["# Others have to reach the socket in it.", f"RuntimeDirectory={context.runtime_name}"]
        lines += ["RuntimeDirectoryMode=0755", "RuntimeDirectoryPreserve=yes"]  # Containers see the folder.
    return [*lines, *_SANDBOX.splitlines()]
