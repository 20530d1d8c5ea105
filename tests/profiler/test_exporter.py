"""A dcgm-exporter, against a real HTTP server that serves text in its format."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cotenant.profiler.indicators.counters import STUCK, Unsupported
from cotenant.profiler.indicators.exporter import PAGE_BYTES_MAX, Exporter, check_url, parse
from cotenant.profiler.indicators.sources import Indicator

PAGE = """\
# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA A100",Hostname="h \\"1\\""}} 2048
DCGM_FI_DEV_FB_FREE{{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA A100",Hostname="h1"}} 6144
DCGM_FI_DEV_POWER_USAGE{{gpu="0",UUID="GPU-1",device="nvidia0"}} {watts}
DCGM_FI_PROF_SM_ACTIVE{{gpu="0",UUID="GPU-1",device="nvidia0",container="",pod=""}} {smact}
DCGM_FI_PROF_TENSOR_UTIL_RATIO{{gpu="0",UUID="GPU-1"}} 0.125000
DCGM_FI_PROF_PCIE_TX_BYTES{{gpu="0",UUID="GPU-1"}} 1.5e+09
DCGM_FI_PROF_DRAM_ACTIVE{{gpu="0",UUID="GPU-1"}} NaN
DCGM_FI_PROF_SM_ACTIVE{{gpu="1",UUID="GPU-2",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"}} 0.9
go_goroutines 12
"""


class Server:
    """Serves whatever `page` is."""

    def __init__(self) -> None:
        self.page = PAGE.format(smact=0.25, watts=100)
        self.code = 200
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(served.code)
                self.end_headers()
                self.wfile.write(served.page.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_names_of_before_and_since_4_6_are_known_and_what_is_no_number_is_missing(server: Server) -> None:
    clock = Clock()
    exporter = Exporter(server.url, ["GPU-1"], clock)
    exporter.wait_for_value()
    clock.now_s, server.page = 30.0, PAGE.format(smact=0.5, watts=101)
    taken = exporter.read()
    assert taken is not None
    assert taken.devices == [{Indicator.SMACT: 0.5, Indicator.TENSO: 0.125, Indicator.PCITX: 1.5e9}]


def test_what_stands_in_a_label_is_no_value_and_may_hold_braces() -> None:
    page = parse(
        'DCGM_FI_DEV_XID_ERRORS{UUID="GPU-1",err_msg="a } in \\"it\\"; DCGM_FI_PROF_SM_ACTIVE{} 9"} 31\n'
        'DCGM_FI_DEV_FB_USED{UUID="GPU-1",pod="unfinished\n'
        'DCGM_FI_PROF_SM_ACTIVE{pod="x{y}",UUID="GPU-1",} 0.5\n'
    )
    assert page == {"GPU-1": {"DCGM_FI_DEV_XID_ERRORS": 31.0, "DCGM_FI_PROF_SM_ACTIVE": 0.5}}


def test_a_collection_counts_once_and_stands_for_the_time_since_the_one_before(server: Server) -> None:
    clock = Clock()
    exporter = Exporter(server.url, ["GPU-1"], clock)
    seen = []
    for at, (smact, watts) in enumerate([(0.1, 1), (0.1, 1), (0.2, 2), (0.2, 2), (0.2, 3)]):
        clock.now_s, server.page = float(at), PAGE.format(smact=smact, watts=watts)
        taken = exporter.read()
        if taken is not None:
            seen.append((taken.since_s, taken.at_s, taken.devices[0][Indicator.SMACT]))
    assert seen == [(0.0, 2.0, 0.2), (2.0, 4.0, 0.2)], "the first page is of unknown age"


def test_an_instance_of_a_divided_gpu_is_not_the_gpu(server: Server) -> None:
    assert set(parse(server.page)) == {"GPU-1"}
    with pytest.raises(Unsupported, match="shows none of GPU-2"):
        Exporter(server.url, ["GPU-2"]).read()


def test_an_exporter_without_profiling_metrics_says_so_by_showing_none(server: Server) -> None:
    server.page = 'DCGM_FI_DEV_FB_USED{UUID="GPU-1"} 1\n'
    with pytest.raises(Unsupported, match="shows no DCGM_FI_PROF_ metrics"):
        Exporter(server.url, ["GPU-1"]).wait_for_value()


def test_an_exporter_whose_counters_stay_0_on_a_busy_gpu_has_no_values(server: Server) -> None:
    clock = Clock()
    page = 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{UUID="GPU-1"}} 0\nDCGM_FI_DEV_GPU_UTIL{{UUID="GPU-1"}} {}\n'
    exporter = Exporter(server.url, ["GPU-1"], clock)
    for at, (busy, values) in enumerate(((10, {}), (20, {Indicator.GRACT: 0.0}), (100, {}))):
        clock.now_s, server.page = 30.0 * at, page.format(busy)
        taken = exporter.read()
        assert taken is None or taken.devices == [values]
    assert exporter.problems() == [STUCK]


def test_what_goes_wrong_is_one_line(server: Server) -> None:
    exporter = Exporter(server.url, ["GPU-1"])
    server.code = 503
    with pytest.raises(Unsupported, match="503"):
        exporter.read()
    server.code = 200
    server.page = "#" * (PAGE_BYTES_MAX + 1)
    with pytest.raises(Unsupported, match="sends more than"):
        exporter.read()


def test_nobody_there_is_one_line_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unsupported, match="refused"):
        Exporter(f"http://127.0.0.1:{port}", ["GPU-1"]).read()


def test_an_address_is_a_url() -> None:
    assert check_url("http://127.0.0.1:9400") == "http://127.0.0.1:9400/metrics"
    assert check_url("http://h:1/x") == "http://h:1/x"
    for wrong in ("h:9400", "https://h:9400", "file:///etc/passwd", ""):
        with pytest.raises(Unsupported, match="write http://HOST:PORT/metrics"):
            check_url(wrong)
