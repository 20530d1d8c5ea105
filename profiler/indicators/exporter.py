"""Counters of NVIDIA GPUs as a dcgm-exporter of this host shows them, by HTTP.

Rule: a collection counts once. The exporter collects on its own clock (every 30 s unless told otherwise) and
puts no time beside its values, so a page that is the same as before is taken for the same collection, and a
new one stands for the time since the one before it. The first one is of unknown age and is not used.
Everything that comes from the network is bounded.
"""

from __future__ import annotations

import hashlib
import http.client
import math
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Final, Self
from urllib.parse import urlsplit

from cotenant.profiler.indicators import counters
from cotenant.profiler.indicators.sources import Indicator, IndicatorValues, SourceName, Taken, Wanted

PERIOD_S: Final = 1.0
ANSWER_S_MAX: Final = 2.0
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
METRICS: Final[dict[Indicator, tuple[str, ...]]] = {
    Indicator.GRACT: ("GR_ENGINE_ACTIVE", "GR_ENGINE_UTIL_RATIO"),
    Indicator.SMACT: ("SM_ACTIVE", "SM_UTIL_RATIO"),
    Indicator.SMOCC: ("SM_OCCUPANCY", "SM_OCCUPANCY_RATIO"),
    Indicator.TENSO: ("PIPE_TENSOR_ACTIVE", "TENSOR_UTIL_RATIO"),
    Indicator.DRAMA: ("DRAM_ACTIVE", "DRAM_UTIL_RATIO"),
    Indicator.FP64A: ("PIPE_FP64_ACTIVE", "FP64_UTIL_RATIO"),
    Indicator.FP32A: ("PIPE_FP32_ACTIVE", "FP32_UTIL_RATIO"),
    Indicator.FP16A: ("PIPE_FP16_ACTIVE", "FP16_UTIL_RATIO"),
    Indicator.INTA: ("PIPE_INT_ACTIVE", "INT_UTIL_RATIO"),
    Indicator.PCITX: ("PCIE_TX_BYTES",),
    Indicator.PCIRX: ("PCIE_RX_BYTES",),
    Indicator.NVLTX: ("NVLINK_TX_BYTES",),
    Indicator.NVLRX: ("NVLINK_RX_BYTES",),
}
"""Before DCGM 4.6, and since; behind `DCGM_FI_PROF_`."""
NAMES: Final = {f"DCGM_FI_PROF_{metric}": name for name, metrics in METRICS.items() for metric in metrics}
BUSY: Final = "DCGM_FI_DEV_GPU_UTIL"
"""NVML's utilisation, in percent."""
_LINE: Final = re.compile(
    r"""^(DCGM_[A-Z0-9_]+)\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*)\}[ \t]+(\S+)""", re.MULTILINE
)
"""A label's value may hold whatever it likes: an error's text, a pod's name, braces."""
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

ExportedPage = dict[str, dict[str, float]]
"""UUID -> metric -> value."""


class Exporter(counters.Counters):
    """Some devices, as an exporter shows them."""

    name: SourceName = "exporter"
    about = "a dcgm-exporter, as often as it collects"
    offers = tuple(METRICS)
    lacks = "the exporter does not show it"
    period_s = PERIOD_S

    def __init__(self, url: str, uuids: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        """Sets up the exporter at `url`, once that is checked. Raises Unsupported."""
        super().__init__(uuids, clock)
        self._url = check_url(url)
        self._digest = b""
        self._page: ExportedPage = {}
        self._movements = [counters.Movement() for _ in uuids]

    @classmethod
    def open(cls, wanted: Wanted, uuids: Sequence[str]) -> Self:
        if not wanted.exporter:
            raise counters.Unsupported("no profiler.exporter is set")
        return cls(wanted.exporter, uuids)

    def wait_for_value(self) -> None:
        """It may take half a minute to collect again: its first page says what it has. Exporters leave
        profiling metrics out by default."""
        self.read()
        if not any(values_of(metrics) for metrics in self._shown()):
            raise counters.Unsupported(f"{self._url} shows no DCGM_FI_PROF_ metrics: add them to its list")

    def read(self) -> Taken | None:
        taken = super().read()
        return None if taken is None else taken._replace(period_s=taken.at_s - taken.since_s)

    def read_devices(self, at_s: float) -> list[IndicatorValues] | None:
        """None while the exporter has collected nothing new.

        Raises:
            Unsupported: it does not answer, or shows none of the devices.
        """
        text = fetch(self._url)
        digest = hashlib.sha256(text.encode()).digest()
        if digest == self._digest:
            return None
        self._page = parse(text)
        shown = self._shown()
        if not any(shown):
            raise counters.Unsupported(f"{self._url} shows none of {', '.join(self._uuids)}")
        self._digest = digest
        self._problems = ["" if metrics else "the exporter does not show this GPU" for metrics in shown]
        devices = [values_of(metrics) for metrics in shown]
        for number, (metrics, values) in enumerate(zip(shown, devices, strict=True)):
            gract, busy = values.get(Indicator.GRACT, math.nan), metrics.get(BUSY, math.nan)
            if self._movements[number].is_stuck(gract, busy, at_s):
                self._problems[number], devices[number] = counters.STUCK, {}
        return devices

    def _shown(self) -> list[dict[str, float]]:
        """The newest page's metrics of each device."""
        return [self._page.get(uuid, {}) for uuid in self._uuids]


def check_url(url: str) -> str:
    """Checks the exporter's URL, and completes its path. Raises Unsupported."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise counters.Unsupported(f"profiler.exporter = {url!r}: write http://HOST:PORT/metrics")
    return url if parts.path not in ("", "/") else f"{url.rstrip('/')}/metrics"


def fetch(url: str) -> str:
    """The page as it is now.

    Raises:
        Unsupported: no answer in time, another answer than a page, or one that is too large.
    """
    until_s = time.monotonic() + ANSWER_S_MAX
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    chunks: list[bytes] = []
    size = 0
    try:
        with opener.open(url, timeout=ANSWER_S_MAX) as answer:
            while chunk := answer.read1(64 * 1024):
                size += len(chunk)
                chunks.append(chunk)
                if size > PAGE_BYTES_MAX:
                    raise counters.Unsupported(f"{url} sends more than {PAGE_BYTES_MAX // 2**20} MiB")
                if time.monotonic() > until_s:
                    raise counters.Unsupported(f"{url} did not answer within {ANSWER_S_MAX:g} s")
    except urllib.error.HTTPError as error:
        error.close()
        raise counters.Unsupported(f"{url}: HTTP Error {error.code}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:  # URLError is an OSError.
        reason = error.reason if type(error) is urllib.error.URLError else error
        raise counters.Unsupported(f"{url}: {str(reason)[:200]}") from None
    return b"".join(chunks).decode(errors="replace")


def parse(text: str) -> ExportedPage:
    """What is said of whole GPUs; an instance of a divided one (MIG) is not the GPU."""
    page: ExportedPage = {}
    for metric, words, number in _LINE.findall(text):
        labels = dict(_LABEL.findall(words))
        uuid = labels.get("UUID", "")
        if not uuid or labels.get("GPU_I_ID"):
            continue
        try:
            value = float(number)
        except ValueError:
            continue
        if math.isfinite(value) and value >= 0.0:
            page.setdefault(uuid, {})[metric] = value
    return page


def values_of(metrics: dict[str, float]) -> IndicatorValues:
    return {NAMES[metric]: value for metric, value in metrics.items() if metric in NAMES}
