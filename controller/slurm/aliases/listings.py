"""Jobs and hosts as Slurm's programs print them: states, fields, formats. Pure.

Rule: what is not known prints as Slurm prints it (`N/A`, `UNLIMITED`, nothing), never as a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from cotenant.controller.domain import ENDED, HostState, Phase, array_of
from cotenant.controller.present.problem import Problem
from cotenant.controller.slurm.aliases.reasons import why_waiting
from cotenant.controller.wire import clients as wire

PARTITION: Final = "cotenant"
SQUEUE_FORMAT: Final = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"

STATES: Final[dict[Phase, tuple[str, str]]] = {
    Phase.BLOCKED: ("PENDING", "PD"),
    Phase.HELD: ("PENDING", "PD"),
    Phase.QUEUED: ("PENDING", "PD"),
    Phase.RESERVED: ("PENDING", "PD"),
    Phase.LOADING: ("RUNNING", "R"),
    Phase.RUNNING: ("RUNNING", "R"),
    Phase.CHECKPOINTING: ("COMPLETING", "CG"),
    Phase.STOPPING: ("COMPLETING", "CG"),
    Phase.DONE: ("COMPLETED", "CD"),
    Phase.FAILED: ("FAILED", "F"),
    Phase.CANCELLED: ("CANCELLED", "CA"),
}
TIMEOUT: Final = ("TIMEOUT", "TO")


def slurm_state(job: wire.JobView) -> tuple[str, str]:
    """The state of a job as Slurm names it: its long and its short name."""
    is_over_limit = job.reason_code in ("time-limit", "time-limit-loading")
    return TIMEOUT if is_over_limit and job.phase is Phase.FAILED else STATES[job.phase]


def clock(seconds: float) -> str:
    """Formats seconds as squeue prints a time: `1-02:03:04`, `2:03:04`, `3:04`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def long_clock(seconds: float) -> str:
    """Formats seconds as sacct prints a time: `00:03:04`."""
    return _long(clock(seconds))


def _long(text: str) -> str:
    """A time of `clock` as sacct has it; a word stays as it is."""
    if "-" in text or ":" not in text:
        return text
    return text.rjust(8, "0") if text.count(":") == 2 else f"00:{text:0>5}"


def moment(at: str | None, none: str = "Unknown") -> str:
    """Formats a time of the wire in the local zone, as Slurm does."""
    if at is None:
        return none
    return datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%dT%H:%M:%S")


def device_time_s(job: wire.JobView) -> float:
    return job.load_s + job.run_s + job.pause_s


def hosts(job: wire.JobView) -> list[str]:
    return sorted({device.partition("/")[0] for device in job.devices})


def _where_or_why(job: wire.JobView) -> str:
    state = slurm_state(job)[0]
    if state in ("RUNNING", "COMPLETING"):
        return ",".join(hosts(job))
    return f"({why_waiting(job)})"


def _time_limit(job: wire.JobView) -> str:
    return "UNLIMITED" if job.time_limit_s is None else clock(job.time_limit_s)


def _time_left(job: wire.JobView) -> str:
    """Up to the limit, which counts loads and training."""
    if job.phase in ENDED:
        return "N/A"
    if job.time_limit_s is None:
        return "UNLIMITED"
    return clock(max(0.0, job.time_limit_s - job.load_s - job.run_s))


class Field(NamedTuple):
    title: str
    value: Callable[[Any], str]
    long: str = ""
    """What `squeue --Format` calls it."""


def record(job: wire.JobView) -> str:
    """Formats a job as `scontrol show job` does, as far as it is known here."""
    state, value = slurm_state(job)[0], {key: field.value(job) for key, field in JOB_FIELDS.items()}
    lines = (
        f"JobId={job.job_id} JobName={job.name}",
        f"UserId={job.user} Partition={PARTITION}",
        f"JobState={state} Reason={why_waiting(job)}",
        f"Restarts={max(0, job.attempt - 1)} ExitCode={job.exit_code or 0}:0",
        f"RunTime={long_clock(device_time_s(job))} TimeLimit={_long(value['l'])}",
        f"TimeLeft={_long(value['L'])}",
        f"SubmitTime={value['V']} StartTime={value['S']} EndTime={value['e']}",
        f"NodeList={value['N']} NumNodes={value['D']} TresPerNode={value['b']}",
    )
    return "\n   ".join(lines) + "\n"


def _gpus_per_node(job: wire.JobView) -> str:
    return f"gres/gpu:{-(-job.gpus // (len(hosts(job)) or 1))}"


def _index(job: wire.JobView) -> str:
    return job.job_id.partition("_")[2] or "N/A"


JOB_FIELDS: Final[dict[str, Field]] = {
    "i": Field("JOBID", lambda job: job.job_id, "jobid jobarrayid"),
    "A": Field("JOBID", lambda job: job.job_id),
    "F": Field("ARRAY_JOB_ID", lambda job: array_of(job.job_id), "arrayjobid"),
    "K": Field("ARRAY_TASK_ID", _index, "arraytaskid"),
    "j": Field("NAME", lambda job: job.name, "name"),
    "u": Field("USER", lambda job: job.user, "username"),
    "P": Field("PARTITION", lambda job: PARTITION, "partition"),
    "a": Field("ACCOUNT", lambda job: job.user, "account"),
    "t": Field("ST", lambda job: slurm_state(job)[1], "statecompact"),
    "T": Field("STATE", lambda job: slurm_state(job)[0], "state"),
    "M": Field("TIME", lambda job: clock(device_time_s(job)), "timeused"),
    "L": Field("TIME_LEFT", _time_left, "timeleft"),
    "l": Field("TIME_LIMIT", _time_limit, "timelimit"),
    "D": Field("NODES", lambda job: str(len(hosts(job)) or 1), "numnodes"),
    "b": Field("TRES_PER_NODE", _gpus_per_node, "tres-per-node"),
    "N": Field("NODELIST", lambda job: ",".join(hosts(job)), "nodelist"),
    "R": Field("NODELIST(REASON)", _where_or_why, "reasonlist"),
    "r": Field("REASON", why_waiting, "reason"),
    "V": Field("SUBMIT_TIME", lambda job: moment(job.submitted_at), "submittime"),
    "S": Field("START_TIME", lambda job: moment(job.started_at, "N/A"), "starttime"),
    "e": Field("END_TIME", lambda job: moment(job.ended_at, "N/A"), "endtime"),
    "Q": Field("PRIORITY", lambda job: "0", "prioritylong"),
}
LONG_NAMES: Final = {name: letter for letter, field in JOB_FIELDS.items() for name in field.long.split()}
SACCT_FIELDS: Final[dict[str, Callable[[wire.JobView], str]]] = {
    "JobID": JOB_FIELDS["i"].value,
    "JobIDRaw": JOB_FIELDS["i"].value,
    "JobName": JOB_FIELDS["j"].value,
    "User": JOB_FIELDS["u"].value,
    "Partition": JOB_FIELDS["P"].value,
    "Account": JOB_FIELDS["a"].value,
    "State": JOB_FIELDS["T"].value,
    "ExitCode": lambda job: f"{max(0, job.exit_code or 0) % 256}:{max(0, (job.exit_code or 0) - 128)}",
    "Elapsed": lambda job: long_clock(device_time_s(job)),
    "ElapsedRaw": lambda job: str(int(device_time_s(job))),
    "Submit": JOB_FIELDS["V"].value,
    "Start": lambda job: moment(job.started_at),
    "End": lambda job: moment(job.ended_at),
    "NNodes": JOB_FIELDS["D"].value,
    "NodeList": lambda job: ",".join(hosts(job)) or "None assigned",
    "AllocCPUS": lambda job: "",
    "AllocTRES": lambda job: f"gres/gpu={job.gpus}",
    "ReqTRES": lambda job: f"gres/gpu={job.gpus}",
    **dict.fromkeys(("NCPUS", "TotalCPU", "MaxRSS", "ReqMem", "Comment"), lambda job: ""),
    "Reason": lambda job: job.reason.replace("|", "/") or "None",
    "Restarts": lambda job: str(max(0, job.attempt - 1)),
    "Timelimit": lambda job: _long(_time_limit(job)),
}
STATE_NAMES: Final = frozenset((
    "ALL", *(name for pair in (*STATES.values(), TIMEOUT) for name in pair), "BOOT_FAIL", "BF", "CONFIGURING",
    "CF", "DEADLINE", "DL", "NODE_FAIL", "NF", "OUT_OF_MEMORY", "OOM", "PREEMPTED", "PR", "RESIZING", "RS",
    "REQUEUED", "RQ", "REVOKED", "RV", "SIGNALING", "SI", "STOPPED", "ST", "SUSPENDED", "S",
))  # fmt: skip
"""Slurm's: some of them no job here ever has."""

NodeViews = tuple[wire.NodeView, ...]
LONG_STATES: Final = {"drain": "drained", "drng": "draining", "mix": "mixed", "alloc": "allocated"}


def node_state(node: wire.NodeView) -> str:
    if node.state in (HostState.SILENT, HostState.LOST):
        return "down"
    busy = sum(bool(device.jobs) for device in node.devices)
    if node.state is HostState.DRAINED:
        return "drng" if busy else "drain"
    return "idle" if not busy else "alloc" if busy == len(node.devices) else "mix"


def nodes_by_state(nodes: Sequence[wire.NodeView]) -> list[NodeViews]:
    groups: dict[str, list[wire.NodeView]] = {}
    for node in nodes:
        groups.setdefault(node_state(node), []).append(node)
    return [tuple(group) for group in groups.values()]


def _gres(nodes: NodeViews) -> str:
    devices = nodes[0].devices
    return f"gpu:{devices[0].type}:{len(devices)}" if devices else "(null)"


NODE_FIELDS: Final[dict[str, Field]] = {
    "P": Field("PARTITION", lambda nodes: f"{PARTITION}*"),
    "R": Field("PARTITION", lambda nodes: PARTITION),
    "a": Field("AVAIL", lambda nodes: "up"),
    "l": Field("TIMELIMIT", lambda nodes: "infinite"),
    "D": Field("NODES", lambda nodes: str(len(nodes))),
    "t": Field("STATE", lambda nodes: node_state(nodes[0])),
    "T": Field("STATE", lambda nodes: LONG_STATES.get(node_state(nodes[0]), node_state(nodes[0]))),
    "N": Field("NODELIST", lambda nodes: ",".join(node.host for node in nodes)),
    "n": Field("HOSTNAMES", lambda nodes: ",".join(node.host for node in nodes)),
    "G": Field("GRES", _gres),
    "c": Field("CPUS", lambda nodes: str(nodes[0].cpus)),
    "m": Field("MEMORY", lambda nodes: str(nodes[0].memory_mib)),
    "f": Field("AVAIL_FEATURES", lambda nodes: ",".join(nodes[0].features) or "(null)"),
    "E": Field("REASON", lambda nodes: nodes[0].reason or "none"),
}


# --- Formats ----------------------------------------------------------------------------------------


class FormatPart(NamedTuple):
    """A field, or (`field` is None) text between fields."""

    field: Field | None
    words: str = ""
    width: int = 0
    right: bool = False


_FIELD: Final = re.compile(r"%(\.?)([0-9]*)([A-Za-z%])")


def parse_format(text: str, fields: dict[str, Field], program: str) -> list[FormatPart]:
    """A format such as `%.18i %j`. Raises Problem: a field that there is not."""
    columns: list[FormatPart] = []
    end = 0
    for match in _FIELD.finditer(text):
        columns.append(FormatPart(None, text[end : match.start()]))
        end = match.end()
        if match[3] == "%":
            columns.append(FormatPart(None, "%"))
            continue
        field = fields.get(match[3])
        if field is None:
            known = " ".join(f"%{letter}" for letter in fields)
            raise Problem("usage", f"{program}: there is no field %{match[3]} here", f"known are {known}")
        columns.append(FormatPart(field, "", int(match[2] or 0), bool(match[1])))
    return [*columns, FormatPart(None, text[end:])]


def short_format(text: str) -> str:
    """What `--Format` says (`JobID:10,Name,TimeLimit:.12`), as `--format` says it. Raises Problem: a field
    that there is not."""
    found = []
    for part in filter(None, text.split(",")):
        name, colon, width = part.strip().partition(":")
        letter = LONG_NAMES.get(name.lower())
        if letter is None or (colon and not re.fullmatch(r"\.?[0-9]+", width)):
            known = ", ".join(LONG_NAMES)
            raise Problem("usage", f"squeue: there is no field {part.strip()} here", f"known are {known}")
        found.append(f"%{width or 20}{letter}")
    return "".join(found)


def line(columns: Sequence[FormatPart], subject: object) -> str:
    """Formats one line of a listing; that of the titles, if there is no subject."""
    return "".join(_cell(column, subject) for column in columns).rstrip()


def _cell(column: FormatPart, subject: object) -> str:
    if column.field is None:
        return column.words
    text = column.field.title if subject is None else column.field.value(subject)
    if not column.width:
        return text
    text = text[: column.width]
    return text.rjust(column.width) if column.right else text.ljust(column.width)


def table(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """Formats rows as sacct does: columns of ten characters and more, to the right."""
    wide = [
        width or max(10, *(len(row[at]) for row in rows)) if rows else 10 for at, width in enumerate(widths)
    ]
    return [" ".join(text[:w].rjust(w) for text, w in zip(row, wide, strict=True)) for row in rows]
