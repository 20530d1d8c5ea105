"""Two loads by turns and under MPS, with what the counters show; torch's limits; bits on half of the GPU."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from cotenant.profiler.indicators.sources import Wish
from hwtests import readings
from hwtests.busy import Busy, LoadFailed
from hwtests.device import Device
from hwtests.first.control import (
    LIMIT,
    PERCENTAGE,
    Silent,
    at_once,
    daemon,
    plain_environment,
    run_words,
)
from hwtests.first.notes import Notes, read
from hwtests.first.nvml import Nvml, NvmlFailed
from hwtests.first.place import Place
from hwtests.first.verdicts import speed
from hwtests.test_torch_limits import LAUNCHES, LIMIT_MIB, taken

LOADS = ("matmul", "d2d")
"""One keeps the multiprocessors busy, the other the memory."""
READY_S = 14.0
WINDOW_S = 3.0
ALLOCATORS = ("a single process", "settings of its own for the allocator", "another allocator")
TORCH_LIMITS_MIB = (768, 1024, 2048)


def device_of(place: Place) -> Device:
    kind = "cuda" if place.device == "cuda" else "cpu"
    cores = tuple(sorted(os.sched_getaffinity(0)))
    return Device(kind=kind, cores=cores, uuid=place.uuid if kind == "cuda" else "")  # type: ignore[arg-type]


def start(stack: ExitStack, place: Place, *kinds: str, **env: str) -> list[Busy]:
    """Loads that are ready, started side by side. Raises LoadFailed."""
    loads = [stack.enter_context(Busy(kind, device_of(place), env=env)) for kind in kinds]
    for load in loads:
        said = load.until(lambda said: "ready" in said or "error" in said, READY_S)
        if "error" in said:
            raise LoadFailed(f"{load.kind}: {said['error']}")
    return loads


def ask_turns(note: Notes, place: Place) -> None:
    with ExitStack() as stack:
        try:
            (first,) = start(stack, place, LOADS[0])
            note_window(note, place, "alone: matmul", first)
            (second,) = start(stack, place, LOADS[1])
            note_window(note, place, "both by turns", first, second)
            first.end()
            note_window(note, place, "alone: d2d", second)
        except LoadFailed as problem:
            note("not measured", str(problem))


def note_window(note: Notes, place: Place, name: str, *loads: Busy) -> None:
    """Rates of the loads in one window, with what NVML counts and the product reads meanwhile."""
    asks: dict[str, Callable[[], Any]] = {load.kind: partial(load.rate, WINDOW_S) for load in loads}
    before_mj = energy_mj(place.uuid)
    if place.device == "cuda":
        asks |= {
            "gpm": partial(read_source, place.uuid, "gpm"),
            "nvml": partial(read_source, place.uuid, "nvml"),
        }
    found = at_once(asks)
    note(f"{name}, rates", {load.kind: found[load.kind] for load in loads})
    if place.device == "cuda":
        note(f"{name}, counters", {source: found[source] for source in ("gpm", "nvml")})
        note(f"{name}, energy counter", [before_mj, energy_mj(place.uuid)])


def read_source(uuid: str, wish: Wish) -> dict[str, float] | str:
    """What the product reads; why it reads nothing."""
    try:
        return {
            name.value: round(value, 4) for name, value in readings.product(uuid, WINDOW_S - 1, wish).items()
        }
    except readings.NoReading as problem:
        return str(problem)


def energy_mj(uuid: str) -> int | str:
    try:
        return Nvml().energy_mj(uuid)
    except (NvmlFailed, OSError) as problem:
        return str(problem)


def ask_together(note: Notes, place: Place) -> None:
    try:
        with daemon(place.uuid) as mps, ExitStack() as stack:
            loads = start(stack, place, *LOADS, CUDA_MPS_PIPE_DIRECTORY=str(mps.pipe))
            note("both are clients", len(mps.clients()) >= len(loads))
            note_window(note, place, "both under MPS", *loads)
        facts = {
            **read(place.folder / "raw" / "turns.jsonl"),
            **read(place.folder / "raw" / "together.jsonl"),
        }
        with suppress(
            LookupError, ZeroDivisionError
        ):  # Without the rates alone there is nothing to compare with.
            note("speed together by turns", speed(facts, "both by turns", facts))
            note("speed together under MPS", speed(facts, "both under MPS", facts))
    except (LoadFailed, Silent) as problem:
        note("not measured", str(problem))


def ask_torch_limit(note: Notes, place: Place) -> None:
    """The part that an attempt is given as a variable, under three allocators side by side."""
    if place.device != "cuda":
        note("not measured", "torch holds nothing of a GPU in a rehearsal")
        return
    note("limit, MiB", LIMIT_MIB)

    def ask(name: str) -> Any:
        launcher, env = LAUNCHES[name]
        try:
            return taken(launcher, {**plain_environment(place.uuid), **env})
        except AssertionError as problem:
            return str(problem)[-400:]

    for name, found in at_once({name: partial(ask, name) for name in ALLOCATORS}).items():
        note(name, found)


def ask_torch_mps(note: Notes, place: Place) -> None:
    """Twenty deterministic steps, plain and as clients with half of the multiprocessors or small limits."""
    whole = plain_environment(place.uuid)
    try:
        with daemon(place.uuid) as mps:
            client = {**whole, "CUDA_MPS_PIPE_DIRECTORY": str(mps.pipe)}
            settings = {"without MPS": whole, "100 %": client, "50 %": {**client, PERCENTAGE: "50"}}
            settings |= {f"{size} MiB": {**client, LIMIT: f"0={size}M"} for size in TORCH_LIMITS_MIB}
            asks = {name: partial(run_steps, env) for name, env in settings.items()}
            for name, found in at_once(asks).items():
                note(name, found)
    except Silent as problem:
        note("not measured", str(problem))


def run_steps(env: dict[str, str]) -> dict[str, Any]:
    words = (sys.executable, "-c", STEPS)
    said = run_words(words, 25.0, {**env, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
    for line in said.splitlines():
        with suppress(ValueError):
            return dict(json.loads(line))
    return {"error": (said.splitlines() or ["it said nothing"])[-1][-300:]}


STEPS = """
import hashlib, json, torch
try:
    torch.manual_seed(5)
    torch.use_deterministic_algorithms(True)
    wide = 1536
    model = torch.nn.Sequential(
        torch.nn.Linear(wide, wide), torch.nn.GELU(), torch.nn.LayerNorm(wide), torch.nn.Linear(wide, 64)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(20, 384, wide)
    for x in data:
        optimizer.zero_grad()
        model(x.cuda()).square().mean().backward()
        optimizer.step()
    raw = b"".join(each.detach().cpu().numpy().tobytes() for each in model.parameters())
    count = torch.cuda.get_device_properties(0).multi_processor_count
    print(json.dumps({"sha256": hashlib.sha256(raw).hexdigest(), "multiprocessors": count,
                      "total_mib": torch.cuda.mem_get_info()[1] >> 20}))
except Exception as error:
    print(json.dumps({"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}))
"""
