"""How the present use of a device is shown: columns for `top`.

Rule: what was not measured is `-`, never 0, and every value says where it came from and how
old it is. Values that are older than a few periods are dimmed: they may have changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cotenant.controller.domain import HostId, HostState
from cotenant.controller.present import tables
from cotenant.controller.present.jobs import is_idle, left_text
from cotenant.controller.present.tables import GAP, STATE_COLOURS, Column
from cotenant.controller.present.units import NONE, duration, local_time, size
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s

STALE_S_MIN: Final = 5.0
STALE_PERIODS: Final = 3.0
NAME_WIDTH: Final = 28
JOBS_WIDTH: Final = 46
JOBS_WIDTH_NARROW: Final = 24
NARROW: Final = 100
"""Two jobs with their progress, or one on a narrow screen; more columns are shown only beside that much."""
_SHARES: Final = ("SMACT", "DRAMA", "TENSO", "GRACT", "SMOCC", "FP32A", "FP16A")
_RATES: Final = ("PCITX", "PCIRX", "NVLTX", "NVLRX", "NETTX", "NETRX")

LEGEND: Final[dict[str, tuple[str, str]]] = {
    "SMACT": ("multiprocessors (cores) at work", "part"),
    "DRAMA": ("memory interface at work", "part"),
    "TENSO": ("tensor cores at work", "part"),
    "GRACT": ("time in which anything ran", "part"),
    "SMOCC": ("threads resident, of those that fit", "part"),
    "FP32A": ("FP32 pipe at work", "part"),
    "FP16A": ("FP16 pipe at work", "part"),
    "CPU": ("of a GPU, cores that its jobs use; of a CPU slot, its own at work, whoever uses them", "cores"),
    "PCITX": ("sent over PCIe", "B/s"),
    "PCIRX": ("received over PCIe", "B/s"),
    "NVLTX": ("sent over NVLink", "B/s"),
    "NVLRX": ("received over NVLink", "B/s"),
    "NETTX": ("sent by the host", "B/s"),
    "NETRX": ("received by the host", "B/s"),
}
"""What each indicator is, and its unit; `part` is a share of 1."""
OTHER_WORDS: Final = {
    "BUSY": "SMACT, or GRACT where it is missing",
    "PLANNED": "memory that its jobs were promised",
    "AGE": "of the values",
    "WITH": "who shares the job's devices",
    "S": "micro-batches of a step",
    "LEFT": "until its end",
}
BAR_WIDTH: Final = 8
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def bar(share: float | None) -> str:
    """A share of 1 as a bar of full width; empty where it is not known."""
    if share is None:
        return ""
    eighths = round(8 * BAR_WIDTH * min(1.0, max(0.0, share)))
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()).ljust(BAR_WIDTH, "·")


def legend(titles: Sequence[str]) -> str:
    """What the columns mean whose titles do not say it."""
    said = {name: f"{words} ({unit})" if unit != "part" else words for name, (words, unit) in LEGEND.items()}
    said |= OTHER_WORDS
    shown = [f"{title}: {said[title]}" for title in dict.fromkeys(titles) if title in said]
    return "; ".join([*shown, "-: not measured"])


def reserved_in_words(device: wire.DeviceView) -> str:
    """For whom a device is reserved now or next; empty if it is not."""
    each = device.reserved
    if each is None:
        return ""
    lent = ", and lent until they use it" if each.is_lent else ""
    times = f"{local_time(wall_s(each.from_at))} to {local_time(wall_s(each.until_at))}"
    return f"reserved for {each.user}, {times} ({each.reservation_id}){lent}"


class DeviceLine(NamedTuple):
    """A device and its jobs, as far as the bounded list of jobs holds them."""

    device: wire.DeviceView
    jobs: tuple[wire.JobView, ...]
    host: HostId
    host_state: HostState = HostState.OK

    @property
    def trouble(self) -> str:
        """Why it takes no new work, in a word; empty if it does."""
        if self.host_state is not HostState.OK:
            return self.host_state.value
        if self.device.state != "ok":
            return self.device.state
        if self.device.reserved is not None and self.device.reserved.is_now:
            return "reserved"
        return "" if self.device.healthy else "out"

    def value(self, name: str) -> float | None:
        reading = self.device.reading
        return reading.values.get(name) if reading is not None else None

    @property
    def busy(self) -> float | None:
        """The share of it that is at work, by the best measure that there is."""
        found = self.value("SMACT")
        return self.value("GRACT") if found is None else found

    @property
    def filled(self) -> float | None:
        """The share of its memory that is in use."""
        used = self.device.reading.memory_used_mib if self.device.reading is not None else None
        whole_mib = self.device.memory_mib
        return used / whole_mib if used is not None and whole_mib > 1 else None

    @property
    def is_stale(self) -> bool:
        reading = self.device.reading
        limit_s = max(STALE_S_MIN, STALE_PERIODS * (reading.lasted_s or 0.0)) if reading is not None else 0.0
        return reading is not None and reading.age_s > limit_s


def rows_of(nodes: Sequence[wire.NodeView], jobs: Sequence[wire.JobView]) -> list[DeviceLine]:
    by_id = {job.job_id: job for job in jobs}
    return [
        DeviceLine(device, tuple(by_id[each] for each in device.jobs if each in by_id), node.host, node.state)
        for node in nodes
        for device in node.devices
    ]


# --- Columns ----------------------------------------------------------------------------------------


def _share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f}%"


def _rate(value: float | None) -> str:
    if value is None:
        return NONE
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.1f}{unit}"
    return f"{value:.0f}"


def _cores(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"


def _measured_column(name: str, text: Callable[[float | None], str], rank: int) -> Column:
    return Column(
        name,
        lambda row: text(row.value(name)),
        rank=rank,
        right=True,
        colour=lambda row: "dim" if row.is_stale else "",
    )


def _memory(row: DeviceLine) -> str:
    used = row.device.reading.memory_used_mib if row.device.reading is not None else None
    whole_mib = row.device.memory_mib  # 1: unknown, as of a MIG instance.
    return f"{size(used)}/{size(whole_mib)}" if whole_mib > 1 else "-"


def _age(row: DeviceLine) -> str:
    return duration(row.device.reading.age_s if row.device.reading is not None else None)


def _tenant(job: wire.JobView) -> str:
    left = f" {text} left" if (text := left_text(job)) != NONE else ""
    progress = f" {100 * job.step // job.iterations}%" if job.iterations else f" step {job.step}"
    idle = " idle" if is_idle(job) else ""
    return f"{job.job_id} {tables.cut(job.name, 12)}{progress}{left}{idle}"


def _jobs(row: DeviceLine) -> str:
    named = {job.job_id for job in row.jobs}
    told = [_tenant(job) for job in row.jobs] + [
        f"job {each}" for each in row.device.jobs if each not in named
    ]
    return "; ".join(each for each in ("  +  ".join(told), row.device.note) if each) or _empty(row)


def _empty(row: DeviceLine) -> str:
    return f"nothing: its host is {row.trouble}" if row.host_state is not HostState.OK else "free"


def _short(row: DeviceLine) -> str:
    """The short name of a row's device: of a long name the host's end goes first, since the device tells rows
    apart."""
    host, slash, device = row.device.device_id.rpartition("/")
    return f"{tables.cut(host, max(8, NAME_WIDTH - len(device) - 1))}{slash}{device}"


def _state_colour(row: DeviceLine) -> str:
    return STATE_COLOURS.get(row.trouble, "yellow" if row.trouble else "")


_DEVICE: Final = Column("DEVICE", lambda r: r.device.device_id)
_SHORT: Final = Column("DEVICE", _short)
_STATE: Final = Column("STATE", lambda r: r.trouble or "ok", colour=_state_colour)
_LAST: Final = Column("JOBS", _jobs)
_BARS: Final = (
    Column("BUSY", lambda r: bar(r.busy), rank=4, colour=lambda r: "dim" if r.is_stale else "green"),
    Column("MEMORY USED", lambda r: bar(r.filled), rank=7, colour=lambda r: "dim" if r.is_stale else "cyan"),
)
COLUMNS: Final = (
    _DEVICE,
    _STATE,
    Column("TYPE", lambda r: r.device.type, rank=5, limit=20),
    _measured_column("SMACT", _share, 0),
    _measured_column("DRAMA", _share, 1),
    _measured_column("TENSO", _share, 1),
    _measured_column("GRACT", _share, 8),
    _measured_column("SMOCC", _share, 9),
    _measured_column("CPU", _cores, 2),
    Column("MEMORY", _memory, rank=1, right=True, colour=lambda r: "dim" if r.is_stale else ""),
    *_BARS,
    Column("PLANNED", lambda r: size(r.device.planned_mib), rank=6, right=True),
    Column("SOURCE", lambda r: (r.device.reading and r.device.reading.source) or "", rank=4),
    Column("AGE", _age, rank=3, right=True, colour=lambda r: "yellow" if r.is_stale else ""),
    _LAST,
)
"""On a screen, as many of them as fit."""
WIDE_COLUMNS: Final = (
    *COLUMNS[:3],
    *(_measured_column(name, _share, 0) for name in _SHARES),
    *(_measured_column(name, _rate, 0) for name in _RATES[:4]),
    *(each for each in COLUMNS[8:] if each not in _BARS),
    Column(
        "NOTE", lambda r: r.device.reading.note if r.device.reading is not None else "nothing was read yet"
    ),
)


def columns_for(rows: Sequence[DeviceLine], width: int | None) -> tuple[Column, ...]:
    """The columns that fit beside the jobs; columns in which no device has a value go first. The state is
    there when one is in trouble."""
    in_trouble = any(row.trouble for row in rows)
    kept = [each for each in COLUMNS if each is not _STATE or in_trouble]
    if width is None:
        return tuple(each for each in kept if each not in _BARS)
    kept[0] = _SHORT
    widths = {each.title: max(map(len, (each.title, *(each.text(r) for r in rows)))) for each in kept}
    idle = {each.title for each in kept if each.rank and all(each.text(r) in ("", NONE, "0s") for r in rows)}
    while True:
        last = min(widths["JOBS"], JOBS_WIDTH if width >= NARROW else JOBS_WIDTH_NARROW)
        needed = last + sum(min(widths[c.title], c.limit or 99) + len(GAP) for c in kept if c is not _LAST)
        spare = [each for each in kept if each.rank]
        if needed <= width or not spare:
            return tuple(kept)
        kept.remove(max(spare, key=lambda each: (each.title in idle, each.rank)))
