"""The study of one GPU: MPS and time slices, bounds, warm start, exact resume, the hardware suite, a queue.

    python -m experiments.gpu_study.study --out FOLDER [--device gpu|cpu] [--only PART,...] [--minutes 8]
                                          [--rehearse] [--list]

Each part takes eight minutes at most and leaves `FOLDER/PART.json`; started again, the study makes what is
missing and goes on where a part was cut off. It needs neither network nor root, and ends in `FOLDER/page.md`.
`--device cpu` rehearses on a CPU slot, `--rehearse` in short parts. What is asked, and what would refute us,
stands in preregistration.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from cotenant.agent.host.locks import LOCK_DIR_ENV
from experiments.gpu_study import bounds, pairs, queues, suite
from experiments.gpu_study.page import write_page
from experiments.gpu_study.parts import LIMIT_S, Outcome, Part, Study, read_outcome, run_part
from experiments.shared.live.given import write
from hwtests import host, summary
from hwtests.device import Device

MEMORY_MIB_MIN: Final = 15_000
"""A GPU sold with 16 GB shows a little less to its driver."""
SAME: Final = ("GPUs", "driver", "torch", "commit", "device")
"""What results in one folder must agree in."""


def needs_gpu(study: Study) -> str:
    return "" if study.is_on_gpu else "its tests need a CUDA device"


def stands_for(part: str) -> Callable[[Study], str]:
    """A rehearsal runs one part of those that differ in a number or a name alone."""
    return lambda study: f"{part} rehearses the same code" if study.rehearse else ""


def file_part(
    name: str, about: str, files: dict[str, str | None], obstacle: Callable[[Study], str] | None
) -> Part:
    units = partial(suite.list_files, files)
    return Part(name, about, units) if obstacle is None else Part(name, about, units, obstacle)


PARTS: Final = (
    Part(pairs.SOLOS, "each job of the pairs alone", pairs.list_solos),
    Part("pairs-slices", "six pairs by time slices", partial(pairs.list_pairs, "time-slicing"),
         pairs.find_no_slices),
    Part("pairs-mps", "the same pairs under MPS", partial(pairs.list_pairs, "mps"), pairs.find_no_mps),
    Part("bound-1.10", "jobs with a bound of 1.10 beside a guest", partial(bounds.list_bounds, 1.10)),
    Part("bound-1.05", "with a bound of 1.05", partial(bounds.list_bounds, 1.05), stands_for("bound-1.10")),
    Part("bound-none", "without a bound", partial(bounds.list_bounds, 0.0), stands_for("bound-1.10")),
    file_part("warm-start", "a forked rank opens the GPU", {"warm_start": ""}, None),
    file_part("resume", "preemption and exact resume", {"resume": "loss and fp32"}, None),
    file_part("hw-numbers", "accumulation, counters, foreign processes",
              {"accumulation": "fp64", "foreign": None, "indicators": None}, None),
    file_part("hw-mps", "the daemon, limits, caps",
              {"mps": "", "mps_limits": "", "torch_limits": "", "newer_limits": ""}, needs_gpu),
    file_part("hw-processes", "gangs, kills, suspend",
              {"gangs": "", "kill": "", "cuda_checkpoint": ""}, stands_for("hw-numbers")),
    Part("queue-fifo", "40 jobs under fifo", partial(queues.list_queue, "fifo"),
         stands_for("queue-cotenant")),
    Part("queue-castor", "the same under castor", partial(queues.list_queue, "castor"),
         stands_for("queue-cotenant")),
    Part("queue-cotenant", "the same under cotenant", partial(queues.list_queue, "cotenant")),
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    if options.list:
        print("\n".join(f"{part.name:<15} {part.about}" for part in PARTS))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # What ends us lets us end what we started.
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:5.0f} s  {text}", flush=True)

    options.out.mkdir(parents=True, exist_ok=True)
    if problem := find_obstacle(options.device):
        print(f"gpu-study: {problem}. Or rehearse on the CPU: --device cpu --rehearse", file=sys.stderr)
        return 2
    study = Study(options.out.resolve(), take_device(options.device), options.rehearse, say)
    machine = host.machine(study.device.kind) | {"short parts": "yes" if study.rehearse else "no"}
    if problem := keep_machine(study.folder / "machine.json", machine):
        print(f"gpu-study: {problem}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="gs-l-") as locks:
        if not study.is_on_gpu:
            os.environ |= share_cpu(locks)
        fresh = [run_part(part, study, options.minutes * 60) for part in options.only]
    return conclude(study, machine, fresh)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu-study", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-study"), metavar="FOLDER")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--only", default="", metavar="PART,...", help="these parts (see --list)")
    parser.add_argument("--minutes", type=float, default=LIMIT_S / 60, help="of each part at most (8)")
    parser.add_argument("--rehearse", action="store_true", help="short parts: numbers mean nothing")
    parser.add_argument("--list", action="store_true", help="list the parts and leave")
    options = parser.parse_args(argv)
    wanted = options.only.split(",") if options.only else [part.name for part in PARTS]
    unknown = sorted(set(wanted) - {part.name for part in PARTS})
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; see --list")
    if options.minutes <= 0:
        parser.error("--minutes must be positive")
    options.only = [part for part in PARTS if part.name in wanted]
    return options


def find_obstacle(device: str) -> str:
    """Why the study cannot run here, in a sentence that says what to do; empty if it can."""
    lack = host.lacks_cluster() or (host.lacks_cuda() if device == "gpu" else host.lacks_torch())
    if lack or device == "cpu":
        return lack
    gpu = host.first_gpu()
    assert gpu is not None
    if (gpu.memory_mib or 0) < MEMORY_MIB_MIN:
        return f"{gpu.name} has {gpu.memory_mib} MiB, and two jobs of the study need a GPU of 16 GB"
    return ""


def take_device(device: str) -> Device:
    cores = tuple(sorted(os.sched_getaffinity(0)))
    gpu = host.first_gpu() if device == "gpu" else None
    if gpu is None:
        return Device(kind="cpu", cores=cores[:1])
    return Device(kind="cuda", uuid=gpu.uuid, name=gpu.name, cores=cores)


def share_cpu(folder: str) -> dict[str, str]:
    """Variables of a study on a CPU slot: no other agent minds it, and no GPU is seen.

    With one thread a rank: threads that wait for each other at every operation crawl on a busy machine.
    """
    return {LOCK_DIR_ENV: f"{folder}/locks", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def keep_machine(path: Path, machine: dict[str, str]) -> str:
    """Keep what the folder's results were measured on; what differs from that, if anything does."""
    if not path.exists():
        write(path, machine)
        return ""
    before = json.loads(path.read_text())
    apart = [
        f"{name} was {before.get(name)} and is {machine[name]}"
        for name in (*SAME, "short parts")
        if before.get(name) != machine[name]
    ]
    return (
        f"{path.parent} holds results of another state ({'; '.join(apart)}): take another --out"
        if apart
        else ""
    )


def conclude(study: Study, machine: dict[str, str], fresh: Sequence[Outcome]) -> int:
    """Write the pages; 0 if every part of this run is over."""
    kept = {part.name: read_outcome(study.folder, part.name) for part in PARTS}
    found = {name: outcome for name, outcome in kept.items() if outcome is not None}
    found |= {outcome.part: outcome for outcome in fresh}
    text = write_page(found, [part.name for part in PARTS], machine, is_short=study.rehearse)
    (study.folder / "page.md").write_text(text, encoding="utf-8")
    reports = sorted((study.folder / suite.REPORTS).glob("*.xml"))
    if reports:
        run = summary.join(summary.read(path.read_bytes()) for path in reports)
        (study.folder / "hardware.md").write_text(summary.page(run, summary.suite_parts()), encoding="utf-8")
    left = [outcome.part for outcome in fresh if outcome.state in ("failed", "cut off")]
    study.say(f"written: {study.folder / 'page.md'}")
    if left:
        study.say(f"not over: {', '.join(left)}; run the same again to go on with them")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
