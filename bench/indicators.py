"""What indicators cost: processor seconds per second of sampling, by source.

Run `python bench/indicators.py [--seconds 30] [--write experiments/results/bench-indicators.md]`.

Costs are time on a core as the scheduler counts it, of the thread or process that does the work, so a busy
machine changes them little. The side-by-side comparison is of a job's own progress while sampling is on and
off, in turns; it says how much the machine's noise was as well. GPUs are not measured here: there are none.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import agent_footprint
import machine

from cotenant.agent.host.indicators import SlotUse
from cotenant.controller.domain import Device, DeviceId, HostId
from cotenant.controller.store import DECISION_BOUNDS_S
from cotenant.controller.system.metrics import CONTROLLER, Histogram, Sheet
from cotenant.profiler.indicators.cpu import CpuSource
from cotenant.profiler.indicators.device_process import DeviceProcess, words_of
from cotenant.profiler.indicators.sources import Wanted

GPUS = 8
CPU_STAT = Path("/sys/fs/cgroup/cpu.stat")
"""Of the whole machine, under version 2: as dear to read as a job's own."""
CALM = 0.03
"""Quartile distance of the side-by-side ratios above which they say nothing."""
METRICS = 60
"""An exporter's page: 60 metrics of 8 GPUs."""
WORKER = """
import sys, threading, time
for _ in range({threads}):
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
print("ready", flush=True)
while True:
    sum(range(10_000))
"""
COUNTER = """
import sys, time
print("ready", flush=True)
for line in sys.stdin:
    began, used = time.perf_counter(), time.process_time()
    while time.perf_counter() < began + float(line):
        sum(range(2_000))
    print((time.process_time() - used) / (time.perf_counter() - began), flush=True)
"""


class Cost(NamedTuple):
    what: str
    per_second: float
    """Processor seconds per second of sampling."""
    note: str = ""


def started(code: str, **more: Any) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, **more
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def ended(*processes: subprocess.Popen[Any]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


def timed(read: Callable[[], object], period_s: float, seconds: float) -> float:
    """Processor seconds of this thread per second, reading every `period_s`."""
    read()
    before_s, until_s = time.thread_time(), time.monotonic() + seconds
    began_s = due_s = time.monotonic()
    while (due_s := due_s + period_s) < until_s:
        time.sleep(max(0.0, due_s - time.monotonic()))
        read()
    return (time.thread_time() - before_s) / (time.monotonic() - began_s)


# --- What is measured -------------------------------------------------------------------------------


def of_a_job(seconds: float) -> list[Cost]:
    """The CPU source over a job with two workers of 16 threads each."""
    workers = [started(WORKER.format(threads=15)) for _ in "12"]
    try:
        found = []
        group = CPU_STAT if CPU_STAT.exists() else None
        pids = [worker.pid for worker in workers]
        note_of_group = (
            "as in a control group" if group else "as in a control group, but by ticks: there is none"
        )
        for period_s, stat, note in ((0.5, None, "by ticks"), (0.1, group, note_of_group)):
            source = CpuSource(pids, 2, cpu_stat=stat)
            cost = timed(source.samples, period_s, seconds)
            found.append(Cost(f"CPU source, 2 workers of 16 threads, every {period_s:g} s", cost, note))
        return found
    finally:
        ended(*workers)


def of_slots(seconds: float) -> list[Cost]:
    cores = sorted(os.sched_getaffinity(0))
    slots = [
        Device(
            device_id=DeviceId(f"h/cpu{core}"), host_id=HostId("h"), kind="cpu", type="cpu", local=str(core),
            memory_mib=1, cores=(core,),
        )
        for core in cores
    ]  # fmt: skip
    use = SlotUse()

    def read() -> None:
        use.look()
        for slot in slots:
            use.values(slot)

    what = f"/proc/stat for {len(cores)} CPU slots"
    return [Cost(f"{what}, every {period_s:g} s", timed(read, period_s, seconds)) for period_s in (1.0, 0.1)]


def exporter_page(watts: int) -> bytes:
    lines = []
    for number in range(METRICS):
        name = "DCGM_FI_PROF_SM_ACTIVE" if number == 0 else f"DCGM_FI_DEV_METRIC_{number}"
        lines.append(f"# HELP {name} Some metric of a GPU.\n# TYPE {name} gauge")
        for gpu in range(GPUS):
            labels = f'gpu="{gpu}",UUID="GPU-{gpu}",device="nvidia{gpu}",modelName="NVIDIA A100",Hostname="h"'
            lines.append(f"{name}{{{labels}}} {watts + gpu}.5")
    return "\n".join(lines).encode()


def of_an_exporter(seconds: float) -> list[Cost]:
    """The child that scrapes, with its answers to somebody who asks every second."""
    pages = [0]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            pages[0] += 1
            self.send_response(200)
            self.end_headers()
            self.wfile.write(exporter_page(pages[0]))

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/metrics"
    uuids = [f"GPU-{gpu}" for gpu in range(GPUS)]
    child = DeviceProcess(words_of(Wanted(source="exporter", exporter=url), uuids))
    try:
        while child.ask(1.0) is None:
            pass
        assert child.child is not None
        pid = child.child.process.pid
        before_s, first, began_s = agent_footprint.cpu_s(pid), pages[0], time.monotonic()
        asked = threading.Event()
        while time.monotonic() < began_s + seconds:
            asked.wait(1.0)
            child.ask(0.5)
        passed_s = time.monotonic() - began_s
        cost = (agent_footprint.cpu_s(pid) - before_s) / passed_s
        rate = (pages[0] - first) / passed_s
        size_kib, rss_mb = len(exporter_page(1)) // 1024, agent_footprint.rss_mb(pid)
        note = f"{rate:.1f} pages of {size_kib} KiB a second; {rss_mb:.0f} MB"
        return [Cost(f"exporter child, {GPUS} GPUs, {METRICS} metrics", cost, note)]
    finally:
        child.close()
        server.shutdown()
        server.server_close()


def of_a_scrape() -> list[Cost]:
    """Text of a sheet of 1,000 devices, made by prometheus_client; per scrape, not per second."""
    from prometheus_client.exposition import generate_latest

    from cotenant.controller.system.metrics import Address, Endpoint

    sheet = Sheet(CONTROLLER)
    for device in range(1000):
        host = f"h{device // 8}"
        sheet.put("cotenant_device_planned_memory_bytes", device, host, f"{host}/gpu-{device}")
    sheet.put_histogram("cotenant_decision_seconds", Histogram(DECISION_BOUNDS_S))
    endpoint = Endpoint(Address("127.0.0.1", 0), "metrics.controller_listen")
    endpoint.serve(lambda: sheet)
    before_s = time.thread_time()
    size = [len(generate_latest(endpoint)) for _ in range(50)][-1]
    cost = (time.thread_time() - before_s) / 50
    endpoint.close()
    return [
        Cost("one scrape of 1,000 devices, per scrape", cost, f"{size // 1024} KiB, in a thread of its own")
    ]


def beside_a_job(seconds: float) -> tuple[float, float, int]:
    """How much of its core a job gets with sampling on, relative to off: the median and the quartile distance
    of the ratios of neighbouring turns. Its share, not what it gets done: a virtual core's speed is its
    host's affair, and changes by more from one second to the next than sampling costs."""
    core = min(os.sched_getaffinity(0))
    job = started(COUNTER, preexec_fn=lambda: os.sched_setaffinity(0, {core}))
    assert job.stdin is not None and job.stdout is not None
    source = CpuSource([job.pid], 1)

    def turn(is_on: bool) -> float:
        stdin, stdout = job.stdin, job.stdout
        assert stdin is not None and stdout is not None
        stdin.write("1.0\n")
        stdin.flush()
        share: list[float] = []
        waiting = threading.Thread(target=lambda: share.append(float(stdout.readline())))
        waiting.start()
        while waiting.is_alive():
            if is_on:
                source.samples()
            waiting.join(0.5)
        return share[0]

    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})  # The sampler competes for the very core, as a supervisor does.
    try:
        ratios = []
        for number in range(max(8, int(seconds))):
            first = turn(number % 2 == 0)
            second = turn(number % 2 == 1)
            ratios.append(first / second if number % 2 == 0 else second / first)
    finally:
        os.sched_setaffinity(0, allowed)
        ended(job)
    quartiles = statistics.quantiles(ratios, n=4)
    return statistics.median(ratios), quartiles[2] - quartiles[0], len(ratios)


# --- The page ---------------------------------------------------------------------------------------


def page(costs: list[Cost], beside: tuple[float, float, int], seconds: float) -> str:
    rows = "\n".join(f"| {c.what} | {c.per_second:.5f} | {c.note} |" for c in costs)
    import prometheus_client
    import psutil

    version = getattr(prometheus_client, "__version__", "") or _version("prometheus-client")
    return f"""# What indicators cost

Sampling takes {100 * costs[0].per_second:.2f} % of one core with the {costs[0].what}.
The table has processor seconds per second of sampling ({seconds:g} s each): 0.01 is 1 % of one core.

| what | seconds per second | |
| --- | --- | --- |
{rows}

{in_words(beside)}

Not measured, because there is no GPU here: the children that read GPM, DCGM and NVML, and what sampling costs
the GPU itself. `hwtests/` is where that can be asked.

Command: `python bench/indicators.py --seconds {seconds:g}`
{machine.sentences(psutil=psutil.__version__, prometheus_client=version)}
"""


def in_words(beside: tuple[float, float, int]) -> str:
    """What the side-by-side comparison says, if the machine was calm enough to say anything."""
    median, spread, turns = beside
    what = (
        "A job pinned to one core, its sampler (the CPU source, every 0.5 s) on the same core, in "
        f"{2 * turns} turns of a second,\non and off: "
    )
    if spread > CALM:
        return (
            f"{what}not comparable. The machine had other work: neighbouring turns differ by "
            f"{100 * spread:.0f} %\n(quartile distance), and sampling costs about 1 % of a core by the table."
        )
    return (
        f"{what}with sampling on it had {100 * median:.2f} % as much of the core\n"
        f"(median of neighbouring turns; quartiles {100 * spread:.2f} points apart: this machine's noise)."
    )


def _version(name: str) -> str:
    from importlib.metadata import version

    return version(name)


def main() -> None:
    known = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    known.add_argument("--seconds", type=float, default=30.0)
    known.add_argument("--write", type=Path)
    options = known.parse_args()
    seconds = options.seconds
    costs = [*of_a_job(seconds), *of_slots(seconds), *of_an_exporter(seconds), *of_a_scrape()]
    text = page(costs, beside_a_job(seconds), seconds)
    print(text)
    if options.write is not None:
        options.write.write_text(text)


if __name__ == "__main__":
    main()
