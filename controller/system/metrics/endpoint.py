"""What answers Prometheus: the threads of prometheus_client's own server.

Rule: what is shown comes from `sheet.py`, which never keeps the process's loop waiting. prometheus_client is
loaded here and nowhere else, and only where the setting asks for an endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from cotenant.controller.system.metrics.address import Address, MetricsProblem, parse
from cotenant.controller.system.metrics.sheet import Sheet

LEAVE_S_MAX: Final = 1.0
PATH: Final = "/metrics"


class NoSheet(Exception):
    """The process was too busy to make its metrics, or failed to; its log says which."""


class Endpoint:
    """The listening socket that answers Prometheus, and its threads."""

    def __init__(self, address: Address, key: str) -> None:
        """Listens at `address`; a scrape before `serve` fails. `key` is the setting, for messages.

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
        """What an operator should know of the address; empty if nothing."""
        if self.address.is_loopback:
            return ""
        return f"metrics at http://{self.address}{PATH} can be read by whoever reaches that address"

    def serve(self, newest: Callable[[], Sheet | None]) -> None:
        """Answers scrapes from now on; `newest` is called by the answering threads."""
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
            buckets = [(_format_bound(bound), float(count)) for bound, count in histogram.cumulative()]
            found.add_metric((), buckets, histogram.total)
            yield found


def _format_bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(float(bound))


def open_endpoint(text: str, key: str) -> Endpoint | None:
    """The endpoint, listening and not yet answering; None where the setting is empty.

    Raises:
        MetricsProblem: a bad or taken address, or prometheus-client is missing.
    """
    if not text:
        return None
    address = parse(text, key)

    return Endpoint(address, key)
