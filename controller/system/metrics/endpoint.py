"""Where the metrics of a process can be read (`HOST:PORT`, `[IPv6]:PORT`, or a port alone), and what answers
Prometheus there: the threads of prometheus_client's own server.

Rule: a port alone is this machine's loopback. To let the network read it, give an address.

Rule: what is shown comes from `sheet.py`, which never keeps the process's loop waiting. prometheus_client is
loaded here and nowhere else, and only where the setting asks for an endpoint.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from cotenant.controller.domain import texts
from cotenant.controller.system.metrics.sheet import Sheet

LOOPBACK: Final = "127.0.0.1"
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


class MetricsProblem(Exception):
    """Why there are no metrics, in one line with what to do."""


class Address(NamedTuple):
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(text: str, key: str) -> Address:
    """What setting `key` says.

    Raises:
        MetricsProblem: it makes no sense; the text says what would.
    """
    host, colon, port = text.strip().rpartition(":")
    host = host if colon else LOOPBACK
    if host.startswith("[") and host.endswith("]"):
        host, good = host[1:-1], _is_ip(host[1:-1])
    else:
        good = ":" not in host and (_is_ip(host) or _is_name(host))
    if not good or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise MetricsProblem(
            f"{key} = {text!r}: write PORT (this machine only), HOST:PORT or [IPv6]:PORT, such as 9741 or "
            "0.0.0.0:9741"
        )
    return Address(host, int(port))


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and not texts.is_whole_number(text.replace(".", ""))


LEAVE_S_MAX: Final = 1.0
PATH: Final = "/metrics"


class NoSheet(Exception):
    """The process was too busy to make its metrics, or failed to; its log says which."""


class Endpoint:
    """One listening socket and its threads."""

    def __init__(self, address: Address, key: str) -> None:
        """Listens; a scrape before `serve` fails. `key` is the setting, for messages.

        Raises:
            MetricsProblem: a taken address, or prometheus-client is missing.
        """
        try:
            import prometheus_client.core
        except ImportError:
            raise MetricsProblem(
                f"{key} is set, but the Python package prometheus-client is not installed: "
                "pip install '.[metrics]' in the source folder, or leave the setting out"
            ) from None
        self._newest: Callable[[], Sheet | None] = lambda: None
        self._core: Any = prometheus_client.core
        registry = prometheus_client.CollectorRegistry()
        registry.register(self)
        prometheus_client.ProcessCollector(registry=registry)
        try:
            started = prometheus_client.start_http_server(address.port, address.host, registry)
        except OSError as error:
            raise MetricsProblem(
                f"{key}: cannot listen on {address}: {error.strerror or error}; take another "
                "port, or an address of this machine"
            ) from None
        self._server, self._thread = started
        self.address = Address(address.host, self._server.server_port)

    @property
    def warning(self) -> str:
        """What an operator should know; empty if nothing."""
        if self.address.is_loopback:
            return ""
        return f"metrics at http://{self.address}{PATH} can be read by whoever reaches that address"

    def serve(self, newest: Callable[[], Sheet | None]) -> None:
        """From now on; `newest` is called by the answering threads."""
        self._newest = newest

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(LEAVE_S_MAX)
        self._server.server_close()

    def collect(self) -> Iterator[Any]:
        """What the registry asks for at each scrape: the newest sheet as prometheus_client's own values.

        Raises:
            NoSheet: there is no recent one. The scrape fails, so that Prometheus counts the process as down.
        """
        sheet = self._newest()
        if sheet is None:
            raise NoSheet("no recent metrics: this process is busy, or its log says what failed")
        families = {"gauge": self._core.GaugeMetricFamily, "counter": self._core.CounterMetricFamily}
        for name, series in sheet.values.items():
            metric = sheet.metrics[name]
            family = families[metric.kind](name, metric.help, labels=metric.labels)
            for labels, value in series.items():
                family.add_metric(labels, value)
            yield family
        for name, histogram in sheet.histograms.items():
            found = self._core.HistogramMetricFamily(name, sheet.metrics[name].help, labels=())
            buckets = [(_bound(bound), float(count)) for bound, count in histogram.cumulative()]
            found.add_metric((), buckets, histogram.total)
            yield found


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(float(bound))


def opened(text: str, key: str) -> Endpoint | None:
    """The endpoint, listening and not yet answering; None where the setting is empty.

    Raises:
        MetricsProblem: a bad or taken address, or prometheus-client is missing.
    """
    if not text:
        return None
    address = parse(text, key)

    return Endpoint(address, key)
