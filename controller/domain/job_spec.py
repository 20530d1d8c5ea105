"""What the user asked for, and an upper estimate of the memory of the controller that a job's own texts take.

Rule: only `SpecChanged` replaces a spec, as a whole; on devices only what `SET_ON_DEVICES` names is another.
The constructor refuses one that makes no sense. The memory is counted in characters, not measured, so that
every replay of a journal counts the same.
"""

from __future__ import annotations

import re
from math import inf
from typing import Final, Literal

import msgspec

from cotenant.controller.domain.container import Container
from cotenant.controller.domain.idling import IDLE_FORMS, is_idle_rule
from cotenant.controller.domain.ids import JobId, array_of
from cotenant.controller.domain.notices import WEBHOOK_VARIABLE, notify_problem
from cotenant.controller.domain.owned import ForOwner, OfCommand, OwnersText
from cotenant.controller.domain.printed import LINK_FORMS, is_link
from cotenant.controller.performance import Gang, Profile, sized_gang

PRIORITY_MAX: Final = 1_000
GRIDS_MAX: Final = 16
SHARE_MAX_MIN: Final = 1.01
"""No smaller bound can be told from the noise of step times."""
SHARE_MAX_MAX: Final = 10.0
SHARE_FORMS: Final = "auto, never, max=none, or max=X with X from 1.01 to 10"

SET_ON_DEVICES: Final = ("time_limit_s", "name", "notify", "idle", "priority")
"""Fields that may change while a job holds devices: nothing that it was started with depends on them."""

LaunchMode = Literal["worker", "host", "process"]
"""How often a command is started: once per device, as a rank of a gang; once per host, as torchrun is; or
once, as it was typed."""

LaunchKind = Literal["", "warm", "cold"]
"""How processes were started: forked from one that had imported their packages, or each from nothing; empty:
not known."""


class SlurmScript(msgspec.Struct, frozen=True, kw_only=True):
    """What a script with `#SBATCH` lines finds around it: SLURM_* variables, `srun`, its warning signal."""

    variables: dict[str, str] = {}
    """Those that are known at submission; the host adds the others."""
    tasks: int = 0
    """Of a step that does not say how many; 0: one per host, or `tasks_per_host` on each."""
    tasks_per_host: int = 0
    gpus_per_task: int = 0
    """Above 0: a task of a step sees so many GPUs and no other."""
    array_position: int = 0
    """Of its task in the array, from 0."""
    signal: int = 0
    """Sent before the time limit (`--signal`); 0: none."""
    signal_before_s: float = 0.0
    signal_script: bool = False
    """To the script (`B:`), else to the tasks of its steps."""

    def job_number(self, job_id: str) -> str:
        """The value of SLURM_JOB_ID: a number in any case, because scripts calculate with it. The tasks of
        array 7 are 7, 8, 9, ...: the controller gives these to no other job."""
        return str(int(array_of(job_id)) + self.array_position)

    def warned_after_s(self, time_left_s: float) -> float:
        """The time after which the script itself is signalled, in seconds; inf: never. `srun` signals the
        tasks of steps."""
        if not self.signal_script or time_left_s == inf:
            return inf
        return max(0.0, time_left_s - self.signal_before_s)


class InputFile(msgspec.Struct, frozen=True, kw_only=True):
    """The standard input of `cotenant run`, as its job opens it on the same machine."""

    path: str
    """Below /proc: it says the same only as long as that `run` lives."""
    device: int
    inode: int
    """Of the file or pipe. The job gets no other, whatever the path has come to mean."""
    offset: int = 0
    """Where in a file each attempt begins to read."""


class CodeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A working tree, packed at submission: the job's hosts unpack it and the job runs in its own copy."""

    sha256: str
    """Of the packed tree, in 64 hexadecimal digits. Equal trees of one user are one snapshot."""
    kind: Literal["git", "copy"]
    """git: the files that git tracks, as they are in the working tree. copy: everything in the folder."""
    size_bytes: int
    """Of the packed tree."""
    content_bytes: int
    """Of the unpacked files together."""
    files: int
    top: str
    """The folder that was packed, on the submitting machine."""
    subfolder: str = ""
    """The job's working directory below `top`; empty: `top` itself."""
    commit: str = ""
    """Checked out when it was packed; empty: there is none."""
    branch: str = ""
    dirty: bool = False
    """Tracked files differed from the commit."""

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError("a snapshot is named by its SHA-256")
        if self.subfolder.startswith("/") or ".." in self.subfolder.split("/"):
            raise ValueError("a snapshot's subfolder must lie in the snapshot")
        if min(self.size_bytes, self.content_bytes, self.files) < 0:
            raise ValueError("a snapshot's sizes must not be negative")


EQUIVALENT: Final = "equivalent"


RESUME_VARIABLE: Final = "COTENANT_RESUME"
"""Names the checkpoint that an attempt goes on from; else that is the newest."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How the user's command is started; opaque to policies."""

    argv: tuple[str, ...] = ()
    workdir: str = "/"
    env: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    """Names of variables whose values stay in a 0600 file and never enter journal, logs or `show`."""
    output: str = ""
    """Extra file (a pattern with %j, %a, %r) that receives the rank's output; empty = agent's logs only."""
    mode: LaunchMode = "worker"
    ranked_alone: bool = True
    """A worker that is the only one gets RANK and its kin as well; False: it is started as it was typed."""
    zero_code: tuple[str, ...] = ()
    """What the hook does for a script that knows nothing of cotenant: accumulate, mean, checkpoint,
    progress; and `equivalent`: batches may be split although parts draw other random numbers."""
    warm: bool = True
    """Its ranks may be forked from a process that has imported their packages; False: `--cold`."""
    watchdog_s: float | None = None
    """`--watchdog`: seconds without an optimizer step after which it hangs; 0 = never; None = the agent's
    rule."""
    devices_as: Literal["", "index", "uuid"] = ""
    """`--devices-as`: what CUDA_VISIBLE_DEVICES holds; empty: as its host sets."""
    input: InputFile | None = None
    """What its one rank reads as its standard input."""
    errors_apart: bool = False
    """Its log says which parts of rank 0's output were standard error (`run` into a pipe or a file). The
    order between the two streams is then that of their arrival; else it is exact."""
    terminal: bool = False
    """Its one rank has a pseudo-terminal (`shell`, `run --pty`)."""
    slurm: SlurmScript | None = None
    """It came with `#SBATCH` lines."""
    snapshot: CodeSnapshot | None = None
    """It runs in a private copy of this tree; None: in `workdir` itself, as that is when it starts."""
    container: Container | None = None
    """Its processes run in containers of this image (`--image`); None: on the host itself."""
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    umask: int = 0o022
    """Its submitter's: what it makes has the modes that it would have by itself."""

    @property
    def secret_variables(self) -> tuple[str, ...]:
        """The secrets that its processes get: all but the one by which its owner is told."""
        return tuple(name for name in self.secrets if name != WEBHOOK_VARIABLE)

    def save_no_more(self, checkpoint: str) -> Launch:
        """The same without saving. `checkpoint`: what it goes on from; empty: it begins anew."""
        words = tuple(word for word in self.zero_code if word not in ("checkpoint", "leave"))
        if not checkpoint:
            return msgspec.structs.replace(self, zero_code=words)
        env = {**self.env, RESUME_VARIABLE: checkpoint}
        return msgspec.structs.replace(self, zero_code=(*words, "leave"), env=env)

    def numbers_devices(self, of_host: Literal["index", "uuid"]) -> bool:
        """Whether CUDA_VISIBLE_DEVICES holds indices: by its own word, else as its host sets."""
        return (self.devices_as or of_host) == "index"

    def gives_ranks(self, workers: int) -> bool:
        """Whether each of so many workers finds its rank in its environment."""
        return self.mode == "worker" and (workers > 1 or self.ranked_alone)

    @property
    def may_be_split(self) -> bool:
        """A hook in its processes checks whether its batches can be, and says hello when it knows."""
        return "accumulate" in self.zero_code

    @property
    def is_equivalent(self) -> bool:
        """Whether its batches may be split although parts draw other random numbers than the whole."""
        return EQUIVALENT in self.zero_code

    def allow_equivalent(self) -> Launch:
        """Returns the launch with that permission, if its batches may be split at all."""
        if self.is_equivalent or not self.may_be_split:
            return self
        return msgspec.structs.replace(self, zero_code=(*self.zero_code, EQUIVALENT))

    @classmethod
    def make_counted(cls, *argv: str) -> Launch:
        """Returns a launch of a command whose steps something counts."""
        return cls(argv=argv, zero_code=("progress",))

    @property
    def can_wait(self) -> bool:
        """Whether its ranks can be asked to wait between micro-batches: something counts their steps."""
        return "progress" in self.zero_code


class Dependency(msgspec.Struct, frozen=True, kw_only=True):
    """A dependency on another job: `--after JOB` (`ok`: it must have finished well) or `--after any:JOB`
    (`any`: ended at all)."""

    job_id: JobId
    need: Literal["ok", "any"] = "ok"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The specification of a job: what the user asked for."""

    job_id: JobId
    name: str = ""
    user: str = ""
    organisation: str = ""
    job_class: Literal["hp", "spot"] = "spot"
    priority: int = 0
    """Before the policy's order: greater goes first. -1,000 to 1,000."""
    gpus_min: int = 1
    gpus_max: int = 1
    """Above gpus_min for an elastic job: it may be given any number in between (`takes`), and another while
    it trains. What is said of it in time (`expected_s`) is on gpus_min."""
    nodes: int = 0
    """Pods of equal size, one per host; 0 = as few hosts as possible, which for one process is one."""
    gpu_fraction: float = 1.0
    """Below 1: a part of one device (`domain/tenancy.py`); such a job has gpus_min = gpus_max = 1."""
    gpu_type: str = ""
    features: tuple[str, ...] = ()
    memory_mib: int | None = None
    """Declared peak device memory per worker at the whole batch; None = unknown."""
    cpus: int = 0
    host_memory_mib: int = 0
    batch_size: int | None = None
    """Per worker; of an elastic job on gpus_max. None = not said: as it is seen (`Job.batch_size`)."""
    iterations: int | None = None
    """Optimizer steps in all."""
    expected_s: float | None = None
    load_s: float | None = None
    """Launch to first step, if known beforehand; else learned from what ran before."""
    pause_s: float | None = None
    """Stop request to devices free, if known beforehand; else learned."""
    time_limit_s: float | None = None
    budget_s: float | None = None
    """It has finished after so much training, counted as if it were alone (`domain/budget_use.py`)."""
    share: str = "auto"
    """`never`; `max=X`: its step time beside others is at most X times that alone; `max=none`: it has no
    bound; `auto`: as its class and the cluster say."""
    idle: str = ""
    """What is done about it while it holds its devices idle (`idle_steps`); empty, as submitted: as the
    configuration says of its kind."""
    resumable: bool | None = None
    """None: learned from the job itself when it says hello. True: SIGTERM makes it save by itself, and it may
    be started again, whatever it says."""
    retries: int = 0
    after: tuple[Dependency, ...] = ()
    hold: bool = False
    array_limit: int = 0
    """So many tasks of its array may wait for devices or have them at once; 0: all."""
    requeues: int = 0
    """At its time limit it queues again, with another such limit, up to so many times."""
    promised_s: float | None = None
    """By then, in seconds of the journal, it is promised to have ended; None: nothing is promised."""
    notify: ForOwner[tuple[str, ...]] = ()
    """Of what its owner is told (`NoticeKind`), and to which mail addresses."""
    begin_s: float | None = None
    """It does not start before then, in seconds of the journal (in a submission: since 1970); None: at
    once."""
    profile: Profile | None = None
    profiling: Literal["auto", "never", "only"] = "auto"
    """auto: measured in place, while its first attempt runs alone, if no like job was before. only: it runs
    for its profile's sake and ends when that is complete (`cotenant profile`)."""
    parameters: OfCommand[tuple[tuple[str, str], ...]] = ()
    """The values that a grid gave it, by name (`--grid`)."""
    link: OwnersText = ""
    """Its page elsewhere, as its user says (`--link`), with `{job}` for its number; empty: what it prints."""
    code_sha256: str = ""
    """Of the script, what lies beside it and the libraries it would load, as the submitter's machine has
    them; empty if nobody could read them. Jobs with the same one may share a profile."""
    launch: Launch = Launch()

    def __post_init__(self) -> None:
        if self.gpus_max > 1 and not self.nodes and self.launch.mode == "process":
            msgspec.structs.force_setattr(self, "nodes", 1)
        if not _is_plain(self) and (problem := _problem(self)):
            raise ValueError(f"job {self.job_id}: {problem}")

    @property
    def gpus(self) -> int:
        return self.gpus_min

    @property
    def size(self) -> float:
        """Devices that it asks for; below 1 for a part of one."""
        return self.gpus_min if self.gpu_fraction == 1.0 else self.gpu_fraction

    @property
    def share_max(self) -> float | None:
        """The bound that the job names; infinite: none is to count. None: it names none."""
        return float(self.share[4:].replace("none", "inf")) if self.share.startswith("max=") else None

    @property
    def is_elastic(self) -> bool:
        return self.gpus_max > self.gpus_min

    def takes(self, devices: int) -> bool:
        """Whether it can run on so many: pods stay equal, and so do the workers' parts of a step's batch."""
        return (
            self.gpus_min <= devices <= self.gpus_max
            and (not self.nodes or devices % self.nodes == 0)
            and (self.batch_size is None or self.batch_size * self.gpus_max % devices == 0)
        )

    def rows(self, devices: int) -> int | None:
        """The rows of each worker in a step, on so many devices: the batch of a step stays what it is on
        `gpus_max`."""
        return None if self.batch_size is None else self.batch_size * self.gpus_max // devices

    def micro_batches(self, devices: int) -> int:
        """The number of micro-batches in which a worker takes its rows, so that none is larger than on
        `gpus_max`."""
        return -(-self.gpus_max // devices)

    @property
    def gang(self) -> Gang:
        """The gang that the job asks for; without a number of hosts it counts as a gang on one."""
        return sized_gang(self.gpus_min, self.nodes or 1)


MIG_TYPE: Final = "MIG-"
"""So begin the types of MIG instances; the rest is the profile, as in `MIG-1g.10gb`."""


def is_type_for(asked: str, type: str) -> bool:
    """Whether a job may have devices of a type. `asked`: the type that it asks for; empty: any. A MIG
    instance, which may be a seventh of a GPU, goes only to jobs that ask for its type."""
    return type == asked or (not asked and not type.startswith(MIG_TYPE))


def is_share(word: str) -> bool:
    """Whether a word may be the `share` of a job."""
    if word in ("auto", "never", "max=none"):
        return True
    try:
        return word.startswith("max=") and SHARE_MAX_MIN <= float(word[4:]) <= SHARE_MAX_MAX
    except ValueError:
        return False


def _is_plain(spec: JobSpec) -> bool:
    """Whether a spec leaves most things open and nothing can be wrong with the rest: as `_problem` says, but
    quickly. A simulation makes hundreds of thousands of them."""
    return (
        0 < spec.gpus_min == spec.gpus_max
        and (spec.gpus_max == 1 or not spec.gpu_type.startswith(MIG_TYPE))
        and spec.nodes == spec.cpus == spec.host_memory_mib == spec.retries == spec.priority == 0
        and spec.gpu_fraction == 1.0
        and spec.memory_mib is spec.batch_size is spec.time_limit_s is spec.budget_s is None
        and spec.share == "auto"
        and not spec.idle
        and (spec.iterations is None or spec.iterations > 0)
        and (spec.expected_s is None or 0 < spec.expected_s < 1e9)
        and (spec.load_s is None or 0 <= spec.load_s < 1e9)
        and (spec.pause_s is None or 0 <= spec.pause_s < 1e9)
        and not spec.after
        and not spec.notify
        and not spec.array_limit
        and not spec.requeues
        and spec.begin_s is None
        and not spec.parameters
        and not spec.link
    )


def _device_checks(spec: JobSpec) -> tuple[tuple[bool, str], ...]:
    """What may be wrong with the devices that a spec asks for, each with its text."""
    return (
        (spec.gpus_min < 1, f"needs at least 1 GPU, got {spec.gpus_min}"),
        (spec.gpus_max < spec.gpus_min, f"gpus_max {spec.gpus_max} is below gpus_min {spec.gpus_min}"),
        (spec.nodes < 0, f"nodes must not be negative, got {spec.nodes}"),
        (
            spec.nodes > 0 and spec.gpus_min % spec.nodes != 0,
            f"gpus {spec.gpus_min} is not a multiple of nodes {spec.nodes}",
        ),
        (not 0.0 < spec.gpu_fraction <= 1.0, f"gpu_fraction must be in (0, 1], got {spec.gpu_fraction}"),
        (spec.gpu_fraction < 1.0 and spec.gpus_max > 1, "a part of a GPU is only possible for one worker"),
        (
            (spec.gpu_fraction < 1.0 or spec.gpus_max > 1) and spec.gpu_type.startswith(MIG_TYPE),
            f"one {spec.gpu_type} per job: it is not divided, and NCCL does not run across MIG instances",
        ),
        (
            spec.memory_mib is not None and spec.memory_mib < 1,
            f"memory must be positive, got {spec.memory_mib} MiB",
        ),
    )


def _sweep_checks(spec: JobSpec) -> tuple[tuple[bool, str], ...]:
    """What may be wrong with the values that a grid gave it, and with its link."""
    count = len(spec.parameters)
    return (
        (
            len(dict(spec.parameters)) < count or count > GRIDS_MAX,
            f"a job has at most {GRIDS_MAX} values of grids, each of another name",
        ),
        (bool(spec.link) and not is_link(spec.link.replace("{job}", "")), f"a link {LINK_FORMS}"),
    )


def _time_checks(spec: JobSpec) -> tuple[tuple[bool, str], ...]:
    """What may be wrong with the times that a spec has, each with its text."""
    return (
        (
            spec.expected_s is not None and not 0 < spec.expected_s < 1e9,
            f"expected time must be positive, got {spec.expected_s}",
        ),
        (
            any(known is not None and not 0 <= known < 1e9 for known in (spec.load_s, spec.pause_s)),
            f"load and pause times must not be negative, got {spec.load_s} and {spec.pause_s}",
        ),
        (
            spec.time_limit_s is not None and not 0 < spec.time_limit_s < 1e9,
            f"time limit must be positive, got {spec.time_limit_s}",
        ),
        (
            spec.budget_s is not None and not 0 < spec.budget_s < 1e9,
            f"budget must be positive, got {spec.budget_s}",
        ),
    )


def _problem(spec: JobSpec) -> str:
    """The first thing wrong with a spec, for a person; empty if nothing is."""
    checks = (
        *_device_checks(spec),
        *_sweep_checks(spec),
        (not is_share(spec.share), f"share must be {SHARE_FORMS}, got {spec.share!r}"),
        (not is_idle_rule(spec.idle), f"idle must be {IDLE_FORMS}, got {spec.idle!r}"),
        (spec.cpus < 0 or spec.host_memory_mib < 0, "cpus and host memory must not be negative"),
        (
            spec.batch_size is not None and spec.batch_size < 1,
            f"batch size must be positive, got {spec.batch_size}",
        ),
        (
            spec.iterations is not None and spec.iterations < 1,
            f"iterations must be positive, got {spec.iterations}",
        ),
        *_time_checks(spec),
        (
            abs(spec.priority) > PRIORITY_MAX,
            f"priority must be {-PRIORITY_MAX} to {PRIORITY_MAX}, got {spec.priority}",
        ),
        (spec.retries < 0, f"retries must not be negative, got {spec.retries}"),
        (spec.array_limit < 0, f"an array's limit must not be negative, got {spec.array_limit}"),
        (
            spec.is_elastic and not (spec.takes(spec.gpus_min) and spec.takes(spec.gpus_max)),
            (
                f"a step of {spec.batch_size} x {spec.gpus_max} samples cannot be divided equally among "
                f"{spec.gpus_min} workers and among {spec.gpus_max}, on {spec.nodes or 'any'} nodes"
            ),
        ),
        (
            spec.requeues < 0 or (spec.requeues > 0 and spec.time_limit_s is None),
            f"to be queued again at its time limit it needs one, and a number of times, got {spec.requeues}",
        ),
        (
            spec.begin_s is not None and not 0 <= spec.begin_s < 1e11,
            f"it cannot begin at {spec.begin_s} s",
        ),
        (any(d.job_id == spec.job_id for d in spec.after), "a job cannot wait for itself"),
        (bool(problem := notify_problem(spec.notify)), problem),
        (
            spec.launch.terminal
            and spec.gpus_max > 1
            and (spec.is_elastic or spec.nodes != 1 or spec.launch.mode == "worker"),
            "a job with a terminal has one rank, on one host",
        ),
        (
            spec.launch.mode == "process" and spec.is_elastic,
            "one process keeps its GPUs: an elastic job has one per GPU (--launch worker) or per host",
        ),
        (
            spec.launch.mode == "process" and spec.nodes > 1,
            f"one process uses the GPUs of one host, and nodes are {spec.nodes}: see --launch",
        ),
    )
    return next((text for wrong, text in checks if wrong), "")


JOB_BYTES: Final = 2_048
"""Of a job that says nothing at all."""
ENTRY_BYTES: Final = 128
"""Of a text, and of whatever else stands in a list, beside its characters."""
USER_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of all jobs of one user that have not ended."""
ENDED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of all jobs that have ended: of larger ones fewer stay listed."""


def held_bytes(spec: JobSpec) -> int:
    launch = spec.launch
    texts = (*launch.argv, *launch.env, *launch.env.values(), *launch.secrets, *spec.features, *spec.notify)
    texts += (spec.name, spec.user, spec.organisation, spec.gpu_type, launch.workdir, launch.output)
    if spec.parameters or spec.link:
        texts += (spec.link, *(word for parameter in spec.parameters for word in parameter))
    if launch.snapshot is not None:
        tree = launch.snapshot
        texts += (tree.sha256, tree.top, tree.subfolder, tree.commit, tree.branch)
    if launch.container is not None:
        texts += (launch.container.image,)
        texts += tuple(path for each in launch.container.mounts for path in (each.source, each.target))
    points = spec.profile.points if spec.profile is not None else ()
    entries = len((*texts, *spec.after, *points * 4))
    together = "".join(texts)
    characters = len(together) if together.isascii() else sum(map(_characters, texts))
    return JOB_BYTES + ENTRY_BYTES * entries + characters


def _characters(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)  # One wide character makes all of them wide.
