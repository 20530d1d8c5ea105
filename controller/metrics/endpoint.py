"""Answers Prometheus at /metrics, from threads of its own.

Rule: everything is bounded: how many scrapes at a time, and how long one may take. What is shown comes from
`sheets.py`, which never keeps the process's loop waiting. prometheus_client is loaded here and nowhere else;
this module is loaded only where the setting asks for it.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from cotenant.controller.metrics.listening import Address, MetricsProblem
from cotenant.controller.metrics.sheet import Sheet

AT_ONCE_MAX: Final = 8
REQUEST_S_MAX: Final = 10.0
LEAVE_S_MAX: Final = 1.0
PATH: Final = "/metrics"
NO_SHEET: Final = (
    "no metrics: for a while this process was too busy for them, or failed to make them; its log may say why"
)


class Endpoint:
    """One listening socket and its threads."""

    def __init__(self, address: Address, key: str) -> None:
        """Listens; nobody is answered before `serve`. `key` is the setting, for messages.

        Raises:
            MetricsProblem: a taken address, or prometheus-client is missing.
        """
        try:
            import prometheus_client.core
            import prometheus_client.exposition
        except ImportError:
            raise MetricsProblem(
                f"{key} is set, but the Python package prometheus-client is not installed: "
                "pip install 'cotenant[metrics]', or leave the setting out"
            ) from None
        self._prometheus: Any = prometheus_client
        try:
            self._server = _Server(address)
        except OSError as error:
            raise MetricsProblem(
                f"{key}: cannot listen on {address}: {error.strerror or error}; take another "
                "port, or an address of this machine"
            ) from None
        self.address = Address(address.host, self._server.server_address[1])
        self._thread: threading.Thread | None = None

    @property
    def warning(self) -> str:
        """What an operator should know; empty if nothing."""
        if self.address.is_loopback:
            return ""
        return f"metrics at http://{self.address}{PATH} can be read by whoever reaches that address"

    def serve(self, newest: Callable[[], Sheet | None]) -> None:
        """From now on; `newest` is called by the answering threads."""
        process = self._prometheus.ProcessCollector(registry=None)

        def page(accept: str) -> tuple[bytes, str] | None:
            sheet = newest()
            return None if sheet is None else _text(self._prometheus, sheet, process, accept)

        self._server.page = page
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join(LEAVE_S_MAX)
        self._server.server_close()


# --- HTTP -------------------------------------------------------------------------------------------


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: Address) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.room = threading.BoundedSemaphore(AT_ONCE_MAX)
        self.page: Callable[[str], tuple[bytes, str] | None] = lambda accept: None
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        """Without HTTPServer's look-up of a name, which can take long and is not used."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that goes away is no news."""


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_S_MAX
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self._refuse(404, f"metrics are at {PATH}")
            return
        if not self.server.room.acquire(blocking=False):
            self._refuse(503, "too many scrapes at a time")
            return
        try:
            page = self.server.page(self.headers.get("Accept", ""))
        finally:
            self.server.room.release()
        if page is None:
            self._refuse(503, NO_SHEET)
        else:
            self._say(200, *page)

    def _refuse(self, code: int, why: str) -> None:
        self._say(code, f"{why}\n".encode(), "text/plain; charset=utf-8")

    def _say(self, code: int, body: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are no news."""


def _text(prometheus: Any, sheet: Sheet, process: Any, accept: str) -> tuple[bytes, str]:
    encoder, kind = prometheus.exposition.choose_encoder(accept)
    return encoder(Page(prometheus.core, sheet, process)), kind


class Page:
    """What an encoder asks for: a sheet as prometheus_client's own values, and those of this process."""

    def __init__(self, core: Any, sheet: Sheet, process: Any) -> None:
        self._core, self._sheet, self._process = core, sheet, process

    def collect(self) -> Iterator[Any]:
        sheet, core = self._sheet, self._core
        families = {"gauge": core.GaugeMetricFamily, "counter": core.CounterMetricFamily}
        for name, series in sheet.values.items():
            metric = sheet.metrics[name]
            family = families[metric.kind](name, metric.help, labels=metric.labels)
            for labels, value in series.items():
                family.add_metric(labels, value)
            yield family
        for name, histogram in sheet.histograms.items():
            found = core.HistogramMetricFamily(name, sheet.metrics[name].help, labels=())
            buckets = [(_bound(bound), float(count)) for bound, count in histogram.cumulative()]
            found.add_metric((), buckets, histogram.total)
            yield found
        yield from self._process.collect()


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(float(bound))
