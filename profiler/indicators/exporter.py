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
from typing import Final
from urllib.parse import urlsplit

from cotenant.profiler.indicators.counters import DeviceMemory, IndicatorValues, Taken, Unsupported
from cotenant.profiler.indicators.sources import Indicator, SourceName

PERIOD_S: Final = 1.0
ANSWER_S_MAX: Final = 2.0
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
NAMES: Final[dict[str, Indicator]] = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": Indicator.GRACT,
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO": Indicator.GRACT,
    "DCGM_FI_PROF_SM_ACTIVE": Indicator.SMACT,
    "DCGM_FI_PROF_SM_UTIL_RATIO": Indicator.SMACT,
    "DCGM_FI_PROF_SM_OCCUPANCY": Indicator.SMOCC,
    "DCGM_FI_PROF_SM_OCCUPANCY_RATIO": Indicator.SMOCC,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": Indicator.TENSO,
    "DCGM_FI_PROF_TENSOR_UTIL_RATIO": Indicator.TENSO,
    "DCGM_FI_PROF_DRAM_ACTIVE": Indicator.DRAMA,
    "DCGM_FI_PROF_DRAM_UTIL_RATIO": Indicator.DRAMA,
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": Indicator.FP64A,
    "DCGM_FI_PROF_FP64_UTIL_RATIO": Indicator.FP64A,
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": Indicator.FP32A,
    "DCGM_FI_PROF_FP32_UTIL_RATIO": Indicator.FP32A,
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": Indicator.FP16A,
    "DCGM_FI_PROF_FP16_UTIL_RATIO": Indicator.FP16A,
    "DCGM_FI_PROF_PIPE_INT_ACTIVE": Indicator.INTA,
    "DCGM_FI_PROF_INT_UTIL_RATIO": Indicator.INTA,
    "DCGM_FI_PROF_PCIE_TX_BYTES": Indicator.PCITX,
    "DCGM_FI_PROF_PCIE_RX_BYTES": Indicator.PCIRX,
    "DCGM_FI_PROF_NVLINK_TX_BYTES": Indicator.NVLTX,
    "DCGM_FI_PROF_NVLINK_RX_BYTES": Indicator.NVLRX,
}
"""Before DCGM 4.6, and since."""
USED, FREE = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"
"""MiB."""
_LINE: Final = re.compile(
    r"""^(DCGM_[A-Z0-9_]+)\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*)\}[ \t]+(\S+)""", re.MULTILINE
)
"""A label's value may hold whatever it likes: an error's text, a pod's name, braces."""
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

ExportedPage = dict[str, dict[str, float]]
"""UUID -> metric -> value."""


class Exporter:
    """Some devices, as an exporter shows them."""

    name: SourceName = "exporter"
    period_s = PERIOD_S
    offers = tuple(dict.fromkeys(NAMES.values()))
    gauges: frozenset[Indicator] = frozenset()
    lacks = "the exporter does not show it"

    def __init__(self, url: str, uuids: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        """Sets up the exporter at `url`, once that is checked. Raises Unsupported."""
        self._url = check_url(url)
        self._uuids = list(uuids)
        self._clock = clock
        self._at_s = -math.inf
        self._digest = b""
        self._page: ExportedPage = {}
        self._problems = [""] * len(self._uuids)

    def read(self) -> Taken | None:
        """None while the exporter has collected nothing new.

        Raises:
            Unsupported: it does not answer, or shows none of the devices.
        """
        text = fetch(self._url)
        digest = hashlib.sha256(text.encode()).digest()
        if digest == self._digest:
            return None
        self._page = parse(text)
        self._problems = [
            "" if uuid in self._page else "the exporter does not show this GPU" for uuid in self._uuids
        ]
        if all(self._problems):
            raise Unsupported(f"{self._url} shows none of {', '.join(self._uuids)}")
        first, self._digest = not self._digest, digest
        before_s, self._at_s = self._at_s, self._clock()
        if first or self._at_s <= before_s:
            return None
        devices = [values_of(self._page.get(uuid, {})) for uuid in self._uuids]
        return Taken(before_s, self._at_s, self._at_s - before_s, devices)

    @property
    def shows_counters(self) -> bool:
        """Whether the newest page has any indicator of the devices; exporters leave them out by default."""
        return any(values_of(self._page.get(uuid, {})) for uuid in self._uuids)

    def memory(self) -> list[DeviceMemory | None]:
        found: list[DeviceMemory | None] = []
        for uuid in self._uuids:
            used, free = (self._page.get(uuid, {}).get(name, math.nan) for name in (USED, FREE))
            found.append(None if math.isnan(used + free) else DeviceMemory(used, used + free))
        return found

    def problems(self) -> list[str]:
        return self._problems

    def close(self) -> None:
        """Nothing is open between two pages."""


def check_url(url: str) -> str:
    """Checks the exporter's URL, and completes its path. Raises Unsupported."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise Unsupported(f"profiler.exporter = {url!r}: write http://HOST:PORT/metrics")
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
                    raise Unsupported(f"{url} sends more than {PAGE_BYTES_MAX // 2**20} MiB")
                if time.monotonic() > until_s:
                    raise Unsupported(f"{url} did not answer within {ANSWER_S_MAX:g} s")
    except urllib.error.HTTPError as error:
        error.close()
        raise Unsupported(f"{url}: HTTP Error {error.code}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:  # URLError is an OSError.
        reason = error.reason if type(error) is urllib.error.URLError else error
        raise Unsupported(f"{url}: {str(reason)[:200]}") from None
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
