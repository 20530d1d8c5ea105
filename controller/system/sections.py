"""Every section of settings, its defaults and what they mean. Reading them from files is `settings.py`.

Rule: one struct per TOML section, one line per key; `cotenant config` prints these docstrings.
Environment: COTENANT_<SECTION>__<KEY>. Precedence: flag > environment > file > default. What the engine
decides by (`[policy]`, `[limits]`, `[organisations]`) is `domain/settings.py`.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from cotenant.controller import domain
from cotenant.controller.system.endpoint import check_address, check_endpoints


class ControllerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[controller]`"""

    endpoint: str | tuple[str, ...] = ""
    """`ipc:///path` (socket 0600, this user only) or `tcp://HOST:PORT` (CURVE); empty = the user's socket.
    A list of the latter: a controller and its standby, asked in this order."""
    listen: str = ""
    """Where the controller of this machine listens; empty = `controller.endpoint`, of a list the one of this
    machine."""
    users: str = ""
    """Which other accounts of this machine may use a Unix socket in /run/NAME/, each as itself: `*` (all) or
    a group. Empty = none."""
    state_dir: str = ""
    """Journal, snapshots, secrets. Empty = the platform's state folder."""
    journal: str = ""
    """`postgresql://USER@HOST/DATABASE`: the journal, for controllers of which one leads; its password is in
    ~/.pgpass. Empty = a file in `state_dir`, for one controller."""
    leader_lease_s: float = 10.0
    """How long a leader may show no sign before a standby takes over."""
    keys_dir: str = ""
    """Where `cotenant init` put keys and users; needed for tcp."""
    lease_s: float = 300.0
    """How long a host may be out of reach before its resumable jobs start elsewhere."""
    silent_after_s: float = 15.0
    """No heartbeat for this long: no new work for that host."""
    idle_exit_s: float = 0.0
    """End after this long without jobs and clients; 0 = never (`run` sets 600)."""
    commit_every_ms: float = 5.0
    """Longest time that a row waits for others to be committed with it."""
    snapshot_every: int = 20_000
    """Journal entries between snapshots."""
    keep_ended: int = 10_000
    """Ended jobs that stay listed; older ones live in the journal only."""
    keep_days: float = 400.0
    """Entries older than this leave the journal for files when `cotenant controller archive` runs."""
    scrub_every_s: float = 86_400.0
    """How often the whole journal is read and its checksums are compared, the first time after a start."""
    eta_share: float = 0.1
    """At most so much of one core works out when jobs end; 0 = nobody does."""
    predictor: str = ""
    """Interference model from `python -m experiments.castor.predictor train`, or the name of an installed
    package's; empty = the duty-cycle rule for unknown pairs."""
    slurm_every_s: float = 10.0
    """How often Slurm is asked what became of hosts that were asked of it (`cotenant alloc`)."""

    def __post_init__(self) -> None:
        check_endpoints("controller.endpoint", self.endpoint)
        if not 0.0 <= self.eta_share <= 1.0:
            raise ValueError(f"controller.eta_share must be 0 to 1, got {self.eta_share}")
        if self.journal:
            try:
                check_address(self.journal)
            except ValueError as error:
                raise ValueError(f"controller.journal {error}") from None
        if not 3.0 <= self.leader_lease_s < 1e4:
            raise ValueError(f"controller.leader_lease_s must be at least 3, got {self.leader_lease_s}")
        if not 0.5 <= self.slurm_every_s < 1e6:
            raise ValueError(f"controller.slurm_every_s must be at least 0.5, got {self.slurm_every_s}")
        if not 0 <= self.keep_days < 1e6:
            raise ValueError(f"controller.keep_days must be at least 0, got {self.keep_days}")
        if not 1 <= self.scrub_every_s < 1e8:
            raise ValueError(f"controller.scrub_every_s must be at least 1, got {self.scrub_every_s}")


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[agent]`"""

    controller: str | tuple[str, ...] = ""
    """Endpoint of the controller, or a list of them; empty = `controller.endpoint`."""
    host: str = ""
    """This host's name in the cluster; empty = the host name."""
    state_dir: str = ""
    """Attempts, logs, unacknowledged reports. Empty = the platform's state folder."""
    keys_dir: str = ""
    """This host's key file from `cotenant init --host`, or its folder; needed for tcp."""
    devices: str = "auto"
    """`auto`, `cpu:N`, `cpu:0-1/4` (slots 0 and 1 of 4), `cuda`, or `cuda:0,2`."""
    devices_as: Literal["uuid", "index"] = "uuid"
    """What CUDA_VISIBLE_DEVICES holds of jobs that say nothing (`--devices-as`). `index`: they do without
    MPS."""
    foreign: Literal["avoid", "ignore"] = "avoid"
    """GPUs on which processes run that are not ours: `avoid` gives them no work until those are gone;
    `ignore` plans as if they were not there."""
    probe_s: float = 2.0
    """How often the driver is asked who is on the GPUs, 0.5 to 60; it is asked for their counters at most 20
    times as often."""
    oversubscribe: bool = False
    """Allow more CPU slots than cores."""
    slot_memory_mib: int = 0
    """Memory of a CPU slot; 0 = the host's memory divided by the slots."""
    features: tuple[str, ...] = ()
    """What `--constraint` can ask for."""
    network: str = ""
    """Interface for gangs over several hosts (GLOO_/NCCL_SOCKET_IFNAME); empty = the library's choice."""
    address: str = ""
    """Where other hosts reach rank 0; empty = 127.0.0.1, which keeps gangs on one host."""
    port_first: int = 0
    """The first port that the ranks of a gang may meet on; 0 = 29500 in a cluster; where controller and agent
    share a socket on one machine, ports of this agent's own, which those of other users do not meet on."""
    port_count: int = 200
    """How many ports from there on."""
    heartbeat_s: float = 1.0
    """How often this host says that it is there, with its jobs' progress."""
    log_bytes_max: int = 64 * 1024 * 1024
    """Per rank and attempt; beyond it the middle is cut, with a marker."""
    user_share_mib: int = 0
    """What copies (`--snapshot`) and logs of one user may take of the disk of `state_dir`. 0 = a tenth of it
    (at least 4 GiB, at most half the disk) where the agent is root; without root, no bound."""
    start_deadline_s: float = 1800.0
    """From launch to first step; a job that hangs at start is ended with a clear reason."""
    quiet_start_s: float = 10.0
    """How long a job counts as loading of which no step can be seen; then it counts as running."""
    watchdog_floor_s: float = 600.0
    """A job that makes no optimizer step for this long, and for `watchdog_multiple` usual ones, and does
    nothing else either, hangs: its stacks go to its log and it is started again. 0 = off."""
    watchdog_multiple: float = 20.0
    """How many usual steps fit into the silence of a job that hangs."""
    shared_account: bool = False
    """Unprivileged agent: also run other users' jobs under its own uid. Unsafe; `doctor` says so."""
    prune_after_days: float = 14.0
    """Logs and records of ended attempts are removed after this."""
    allocation: str = ""
    """Number of the Slurm job that this host is a part of (`cotenant alloc` sets it, and the next two)."""
    leaves_at: str = ""
    """When that job ends, in seconds since 1970; empty = the host stays."""
    leave_grace_s: float = 0.0
    """So long before that jobs save and leave the host."""

    def __post_init__(self) -> None:
        check_endpoints("agent.controller", self.controller)
        if not 0.5 <= self.probe_s <= 60:
            raise ValueError(f"agent.probe_s must be 0.5 to 60, got {self.probe_s}")
        if not 0 <= self.user_share_mib < 2**40:
            raise ValueError(f"agent.user_share_mib must be at least 0, got {self.user_share_mib}")
        if not (0 <= self.watchdog_floor_s < 1e9 and 1 <= self.watchdog_multiple < 1e6):
            raise ValueError(
                "agent.watchdog_floor_s must be 0 (off) or seconds, agent.watchdog_multiple at least 1, got "
                f"{self.watchdog_floor_s} and {self.watchdog_multiple}"
            )


class CheckpointSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[checkpoint]`"""

    root: str = ""
    """Where jobs' checkpoints go, a folder per job. Empty = in the agent's state folder."""
    every_s: float = 600.0
    """Period of asynchronous saves; 0 = only when asked. The controller's, unless the agent of a gang's first
    host has one of its own."""
    keep_days: float = 7.0
    """How long the last checkpoint stays after the job's end."""
    scripts: Literal["auto", "never"] = "auto"
    """Whether scripts are saved when they are asked to leave, without changing them, where that is exact: of
    jobs that say nothing of `--checkpoint`. On the submitting machine it is the user's word; an agent that
    says `never` saves none of them."""


class ProfilerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[profiler]`"""

    seconds: float = 60.0
    """How long a new kind of job is profiled in place, alone, from its first step on; 0 = never."""
    source: Literal["auto", "gpm", "dcgm", "exporter", "nvml"] = "auto"
    """Where the indicators of GPUs come from; `auto`: the first of these that works (`doctor` says which)."""
    dcgm: str = "127.0.0.1"
    """DCGM's host engine on this machine: its Unix socket (`/path`), or 127.0.0.1[:PORT]."""
    exporter: str = ""
    """URL of this host's dcgm-exporter (`http://127.0.0.1:9400/metrics`); empty = there is none."""

    def __post_init__(self) -> None:
        if not 0 <= self.seconds <= 86_400:
            raise ValueError(f"profiler.seconds must be 0 to 86400, got {self.seconds}")


class MpsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[mps]`"""

    mode: Literal["auto", "off", "per-device", "per-host"] = "auto"
    """NVIDIA's Multi-Process Service on this host's GPUs: `auto` uses it where it works, one daemon for all
    GPUs (`per-host`; for each user, where several run jobs); `per-device`: one for each GPU; `off`:
    co-tenants time-slice."""
    active_thread_percentage: float = 100.0
    """Cap on the share of a GPU's multiprocessors that one client gets, 1 to 100."""
    runtime_dir: str = ""
    """Where the daemons' pipe directories are made; short, for their sockets must fit a socket address.
    Empty: the user's runtime folder, for root /run/cotenant."""

    def __post_init__(self) -> None:
        if not 1 <= self.active_thread_percentage <= 100:
            raise ValueError(
                f"mps.active_thread_percentage must be 1 to 100, got {self.active_thread_percentage}"
            )


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[metrics]`"""

    controller_listen: str = ""
    """`HOST:PORT` where the controller answers Prometheus at /metrics; a port alone: 127.0.0.1. Empty: off"""
    agent_listen: str = ""
    """The same for the agent of a host."""
    every_s: float = 1.0
    """How often the agent reads its devices' indicators; 0 = never."""

    def __post_init__(self) -> None:
        if not 0 <= self.every_s <= 3600:
            raise ValueError(f"metrics.every_s must be 0 to 3600, got {self.every_s}")


class LaunchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[launch]`"""

    warm: bool = True
    """Fork ranks from a process that has imported their packages, where that is the same as a cold start."""
    warm_memory_percent: float = 10.0
    """What all such processes of a host may use together, of its memory."""
    first_word_s: float = 2.0
    """What has not come to life by then is killed, and started cold."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.warm_memory_percent <= 100.0:
            raise ValueError(f"launch.warm_memory_percent must be 0 to 100, got {self.warm_memory_percent}")
        if not 0.0 < self.first_word_s <= 3600.0:
            raise ValueError(f"launch.first_word_s must be above 0, at most an hour, got {self.first_word_s}")


class NotifySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[notify]`"""

    kinds: tuple[str, ...] = ()
    """When you are told of your jobs, where their submission says nothing (`--notify`). This and the next two
    count where you submit; all others where the controller runs."""
    mail: str = ""
    """Your mail address; empty = the controller's `notify.mail_domain` gives you one."""
    webhook_file: str = ""
    """File (mode 0600) with the URL of your own webhook, https, on one of the controller's
    `notify.webhook_hosts`; `slack+https://...` is sent Slack's form."""
    command: tuple[str, ...] = ()
    """Program that gets every message as JSON on its standard input, run as the controller's user."""
    site_webhook_file: str = ""
    """File (mode 0600) with the URL of a webhook that gets every message; `slack+https://...` as above."""
    webhook_hosts: tuple[str, ...] = ()
    """Hosts that users' own webhooks may be on: `HOST` or `HOST:PORT`."""
    smtp: str = "127.0.0.1:25"
    """Relay that takes the mail, `HOST:PORT`; empty = no mail."""
    smtp_security: Literal["plain", "starttls", "tls"] = "plain"
    """How the relay is spoken to; certificates are checked."""
    smtp_user: str = ""
    """Name for the relay; empty = it asks for none."""
    smtp_password_file: str = ""
    """File (mode 0600) with the password for the relay."""
    sender: str = ""
    """Address that mail is from; empty = cotenant@HOST."""
    mail_domain: str = ""
    """Whoever names no address has mail at USER@ this domain; empty = at the relay's own, and only where
    there is no command and no webhook."""
    mail_domains: tuple[str, ...] = ()
    """Domains that users' addresses may be at; `*` = any. Empty = `mail_domain`, or any where that is
    empty."""

    def __post_init__(self) -> None:
        try:
            domain.read_notify(self.kinds)
        except ValueError as error:
            raise ValueError(f"notify.kinds {error}") from None
        for name, address in (("mail", self.mail), ("sender", self.sender)):
            if address and not domain.is_mail_address(address):
                raise ValueError(
                    f"notify.{name} must be an address such as anna@example.org, got {address!r}"
                )
        host, _, port = self.smtp.rpartition(":")
        if self.smtp and not (host and port.isascii() and port.isdigit()):
            raise ValueError(f"notify.smtp must be HOST:PORT, got {self.smtp!r}")
        if self.smtp_user and self.smtp_security == "plain" and host not in ("127.0.0.1", "localhost"):
            raise ValueError(
                "notify.smtp_user needs smtp_security starttls or tls: passwords are not sent plain"
            )


class SnapshotSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[snapshot]`"""

    size_max_mib: int = 256
    """Of one packed tree (`--snapshot`); its files may take four times as much."""
    user_max_mib: int = 2048
    """What the controller keeps of one user; trees that no unended job names give way to new ones."""
    host_max_mib: int = 4096
    """What a host keeps of packed trees, so that the next job of the same tree fetches nothing."""
    keep_days: float = 30.0
    """How long the controller keeps a tree after the last job that names it has ended."""
    folder: str = ""
    """Where the controller keeps them; empty = in its state folder. For a controller and its standby: a
    folder that both see."""

    def __post_init__(self) -> None:
        for name in ("size_max_mib", "user_max_mib", "host_max_mib"):
            if not 1 <= getattr(self, name) < 2**40:
                raise ValueError(f"snapshot.{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.keep_days < 1e6:
            raise ValueError(f"snapshot.keep_days must be at least 0, got {self.keep_days}")


class ShellSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[shell]`"""

    time_limit_s: float = 8 * 3600.0
    """Of a shell whose user names none, in seconds: the submitting machine's setting."""

    def __post_init__(self) -> None:
        if not 1.0 <= self.time_limit_s < 1e9:
            raise ValueError(f"shell.time_limit_s must be at least 1, got {self.time_limit_s}")


class PrivacySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[privacy]`"""

    commands: Literal["", "everyone", "owner"] = ""
    """Who reads a job's command line and its values of a grid, beside admins: `everyone`, or its `owner`,
    where others see the program's name. Empty = its owner where several accounts use this controller. What a
    job prints is always its owner's."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of all sections of the configuration."""

    controller: ControllerSettings = ControllerSettings()
    policy: domain.PolicySettings = domain.PolicySettings()
    sharing: domain.SharingSettings = domain.SharingSettings()
    idle: domain.IdleSettings = domain.IdleSettings()
    limits: domain.LimitSettings = domain.LimitSettings()
    reservations: domain.ReservationSettings = domain.ReservationSettings()
    organisations: dict[str, domain.OrganisationSettings] = {}
    """By name; in files only."""
    agent: AgentSettings = AgentSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    profiler: ProfilerSettings = ProfilerSettings()
    mps: MpsSettings = MpsSettings()
    metrics: MetricsSettings = MetricsSettings()
    launch: LaunchSettings = LaunchSettings()
    notify: NotifySettings = NotifySettings()
    snapshot: SnapshotSettings = SnapshotSettings()
    shell: ShellSettings = ShellSettings()
    privacy: PrivacySettings = PrivacySettings()


SectionName = Literal[
    "controller", "policy", "sharing", "idle", "limits", "reservations", "agent", "checkpoint", "profiler",
    "mps", "metrics", "launch", "notify", "snapshot", "shell", "privacy",
]  # fmt: skip
SECTION_NAMES: tuple[SectionName, ...] = get_args(SectionName)
