"""What this host's GPUs can do, in plain words: driver, sharing, counters, permissions, who is on them.

Rule: None of NVML's answers means "unknown". A host without GPUs gets one line about that, not one for each
thing it lacks. A counter that the user could enable is a warning; one that these GPUs do not have is not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from cotenant.controller.cli.doctor.check import (
    CheckFunction,
    Finding,
    check,
    fail,
    name_gpus,
    name_some,
    ok,
    warn,
)
from cotenant.controller.cli.doctor.facts import Facts
from cotenant.controller.cli.doctor.fixes import Fix, fix
from cotenant.controller.domain import HELD_MIB_MIN
from cotenant.controller.present.units import plural, size
from cotenant.profiler.driver import facts as nvml
from cotenant.profiler.driver.facts import GpuFacts, GpuLink, GpuProcess

NAMED_MAX: Final = 4
CUDA_MIN: Final = 11
"""What torch 2.5 needs, the oldest that checkpoints can be made with: it was built for CUDA 11.8 and 12."""
PLAIN: Final = "plain NVML: coarse use, no multiprocessor or tensor counters"

Thing = TypeVar("Thing")


@check("GPUs")
def gpus(facts: Facts) -> Finding:
    """The GPUs of this host; the only check that a host without GPUs gets."""
    driver, on_the_bus = facts.driver, facts.pci_devices or 0
    if driver.problem:
        return _no_driver(facts, on_the_bus)
    if not driver.gpus and on_the_bus:
        found = f"{plural(on_the_bus, 'NVIDIA GPU')} on the bus, and driver {driver.driver} serves none"
        return fail(found, *fix("GPU not served", facts))
    if not driver.gpus:
        return warn("a driver, but no GPU", "is one passed through to this machine?")
    if lost := [gpu for gpu in driver.gpus if gpu.problem]:
        found = "; ".join(f"{gpu.index}: {gpu.problem}" for gpu in lost)
        fallen = any(gpu.problem_code == nvml.LOST for gpu in lost)
        todo = fix("GPU lost" if fallen else "GPU reset", facts, uuid=lost[0].uuid or str(lost[0].index))
        return fail(f"{len(lost)} of {len(driver.gpus)} do not answer: {found}", *todo)
    missing = on_the_bus - len(driver.gpus)
    if missing > 0 and not facts.container:  # There the bus also shows GPUs of other containers.
        found = f"{len(driver.gpus)} of {on_the_bus} on the bus: {missing} not served"
        return warn(found, *fix("GPU not served", facts))
    alike = _group(driver.gpus, _describe_gpu)
    return ok("; ".join(f"{_indices(group)}: {what}" for what, group in alike.items()))


def _no_driver(facts: Facts, on_the_bus: int) -> Finding:
    problem, code = facts.driver.problem, facts.driver.problem_code
    if not on_the_bus and not facts.module and code in (nvml.NOT_NVMLS, nvml.NO_LIBRARY, nvml.NOT_LOADED):
        todo = "CPU slots stand in for GPUs; see `cotenant up --devices cpu:2`"
        return warn(f"none ({problem})", todo)
    seen = f"{plural(on_the_bus, 'NVIDIA GPU')} on the bus, but " if on_the_bus else ""
    known = {
        nvml.NO_LIBRARY: "driver",
        nvml.NOT_LOADED: "driver not loaded",
        nvml.MISMATCH: "driver mismatch",
    }
    if facts.container:
        known[nvml.UNKNOWN] = "driver unknown error"
    step = (
        _permission_fix(facts)
        if code == nvml.NO_PERMISSION
        else fix(known.get(code, "driver problem"), facts)
    )
    return fail(f"{seen}NVML: {problem}", *step)


def _describe_gpu(gpu: GpuFacts) -> str:
    capability = "" if gpu.capability is None else ", compute capability {}.{}".format(*gpu.capability)
    return f"{gpu.name}, {size(gpu.memory_mib)}{capability}"


def _indices(some: Sequence[GpuFacts]) -> str:
    """`0`, `0 to 7`, or `0, 2, 5`: the indices of a group."""
    indices = [gpu.index for gpu in some]
    if len(indices) > 2 and indices == list(range(indices[0], indices[-1] + 1)):
        return f"{indices[0]} to {indices[-1]}"
    return ", ".join(map(str, indices))


def _group(things: Iterable[Thing], key: Callable[[Thing], str]) -> dict[str, list[Thing]]:
    groups: dict[str, list[Thing]] = defaultdict(list)
    for thing in things:
        groups[key(thing)].append(thing)
    return groups


@check("driver", needs="gpus")
def driver(facts: Facts) -> Finding:
    serves = facts.driver.cuda
    cuda = "" if serves is None else ", serves CUDA up to {}.{}".format(*serves)
    found = f"{facts.driver.driver or 'of unknown version'}{cuda}"
    if serves is None or serves[0] > CUDA_MIN:
        return ok(found)
    todo, command = fix("driver", facts)
    newer = Fix(todo.replace("install", "install a newer one of", 1), command)
    if serves[0] < CUDA_MIN:
        return fail(f"{found}: torch 2.5, the oldest that works here, needs 11.8", *newer)
    return warn(f"{found}: only torch built for CUDA 11.8 works with it", *newer)


@check("compute mode")
def compute_mode(facts: Facts) -> Finding | None:
    """Whether two processes may be on a GPU at once."""
    known = [gpu for gpu in facts.answering if gpu.compute_mode is not None]
    others = [gpu for gpu in known if gpu.compute_mode != nvml.COMPUTE_DEFAULT]
    if not known:
        return None
    if not others:
        return ok("DEFAULT: several processes may be on a GPU")
    names = sorted({nvml.COMPUTE_MODES.get(gpu.compute_mode or 0, "an unknown") for gpu in others})
    found = f"{name_gpus(others)} in {' and '.join(names)} mode"
    if any(gpu.compute_mode == nvml.COMPUTE_PROHIBITED for gpu in others):
        return fail(f"{found}: nothing can run there", *fix("PROHIBITED", facts, uuids=_uuids(others)))
    todo = fix("EXCLUSIVE", facts, uuids=_uuids(others))
    return warn(f"{found}: two jobs share it through MPS or not at all", *todo)


def _uuids(some: Iterable[GpuFacts]) -> str:
    return ",".join(gpu.uuid for gpu in some)


@check("MIG")
def mig(facts: Facts) -> Finding | None:
    split = [gpu for gpu in facts.answering if gpu.mig]
    if waiting := [gpu for gpu in facts.answering if gpu.mig_next not in (None, bool(gpu.mig))]:
        after = "leave" if waiting[0].mig else "enter"
        found = f"{name_gpus(waiting)} will {after} MIG mode at the next reset"
        return warn(found, *fix("MIG change", facts, uuids=_uuids(waiting)))
    if not split:
        return None
    if empty := [gpu for gpu in split if not gpu.instances]:
        found = f"{name_gpus(empty)} in MIG mode without instances: nothing can run there"
        return warn(found, *fix("MIG empty", facts, uuids=_uuids(empty)))
    instances = plural(sum(len(gpu.instances) for gpu in split), "instance")
    return ok(f"{name_gpus(split)} in MIG mode ({instances}; jobs name their type, one on each)")


@check("persistence")
def persistence(facts: Facts) -> Finding | None:
    """Where the daemon runs and the mode is off (so Ubuntu starts it), nvidia-smi tells the daemon."""
    known = [gpu for gpu in facts.answering if gpu.persistence is not None]
    without = [gpu for gpu in known if not gpu.persistence]
    if not known:
        return None
    if not without:
        return ok("the driver stays loaded between jobs")
    daemon = ", and nvidia-persistenced runs without it" if facts.persistenced else ""
    found = f"off on {name_gpus(without)}{daemon}: the driver may unload between jobs"
    by_daemon = facts.is_debian and not facts.container and not facts.persistenced
    return warn(found, *fix("persistence daemon" if by_daemon else "persistence mode", facts))


@check("memory errors")
def memory_errors(facts: Facts) -> Finding | None:
    """Checks the errors that ECC counts: what was not corrected, and what waits for a reset."""
    if failed := [gpu for gpu in facts.answering if gpu.remap_failed]:
        found = f"{name_gpus(failed)} ran out of spare memory rows"
        return fail(found, "take it out of service and have it replaced")
    if bad := [gpu for gpu in facts.answering if gpu.ecc_uncorrected or gpu.remap_pending]:
        words = "; ".join(f"{gpu.index}: {_errors(gpu)}" for gpu in bad)
        return warn(words, *fix("GPU reset", facts, uuid=bad[0].uuid))
    if not any(gpu.ecc_uncorrected is not None for gpu in facts.answering):
        return None
    return ok("none that ECC could not correct")


def _errors(gpu: GpuFacts) -> str:
    words = [f"{plural(gpu.ecc_uncorrected, 'uncorrected error')}"] if gpu.ecc_uncorrected else []
    return " and ".join([*words, *(["memory waits to be replaced at a reset"] if gpu.remap_pending else [])])


@check("counters", needs="whole")
def counters(facts: Facts) -> Finding:
    """Checks where indicators come from: GPM on Hopper and later, else DCGM, else what plain NVML has."""
    whole = facts.whole
    without = [gpu for gpu in whole if not gpu.gpm]
    with_gpm = [gpu for gpu in whole if gpu.gpm and not gpu.gpm_problem]
    if len(with_gpm) == len(whole):
        return ok(
            f"GPM on {'this GPU' if len(whole) == 1 else f'all {len(whole)} GPUs'}, and you may read them"
        )
    if refused := [gpu for gpu in whole if gpu.gpm and gpu.gpm_problem]:
        why = "GPM for administrators"  # The driver keeps counters for them, or refuses for another reason.
        if facts.administrator or facts.profiling_for_admins is False:
            why = "GPM refused"
        return warn(f"GPM, but not for {facts.user or 'you'}: {refused[0].gpm_problem}", *fix(why, facts))
    if facts.exporter or (facts.hostengine and facts.dcgm_bindings):
        via = "dcgm-exporter" if facts.exporter else "DCGM's host engine"
        restricted = facts.profiling_for_admins and not facts.administrator and not facts.exporter
        who = "; the engine reads them for you" if restricted else ""
        return ok(f"no GPM on {name_gpus(without)}, but {via} answers{who}")
    where = f"GPM on {name_gpus(with_gpm)}; {name_gpus(without)}: " if with_gpm else ""
    if all("GeForce" in gpu.name for gpu in without):
        return ok(f"{where}{PLAIN}; NVIDIA has those for data-centre GPUs only")
    if facts.dcgm_bindings:
        found = f"{where}no GPM, and DCGM is installed but its host engine does not answer: {PLAIN}"
        return warn(found, *fix("DCGM engine", facts))
    why = "no GPM, and an old DCGM without its Python bindings"
    if not facts.dcgm_old:
        why = "no GPM (it came with Hopper) and no DCGM"
    return warn(f"{where}{why}: {PLAIN}", *fix("DCGM", facts))


@check("indicators", needs="indicators")
def indicators(facts: Facts) -> Finding | None:
    """The source that the agent will use here, found as the agent does: by whether it gives a value."""
    tried = facts.indicators
    if tried is None:
        return None
    if tried.chosen is None:
        return warn(tried.why, "see `counters`; until then profiles have none")
    return ok(tried.why)


@check("device files")
def device_files(facts: Facts) -> Finding | None:
    files = facts.device_files
    if not files and not facts.gpus:
        return None
    if closed := [file for file in files if not file.ours]:
        names = (f"{file.path} ({file.mode:o} {file.owner}:{file.group})" for file in closed[:NAMED_MAX])
        return fail(f"not for {facts.user}: {', '.join(names)}", *_permission_fix(facts))
    if not files:
        return ok("none in /dev, and the driver answers all the same")
    if not any(file.path == "/dev/nvidia-uvm" for file in files):
        step = fix("device files missing", facts)
        return warn("/dev/nvidia-uvm is missing: CUDA cannot start", *step)
    return ok(f"{plural(len(files), 'file')} in /dev, all for you")


def _permission_fix(facts: Facts) -> Fix:
    closed = [file for file in facts.device_files if not file.ours]
    groups = [file.group for file in closed if file.mode & 0o060 == 0o060 and file.group != "root"]
    if groups:
        return fix("device files of a group", facts, group=groups[0])
    names = " ".join(file.path for file in closed[:NAMED_MAX])
    return fix("device files closed" if closed or facts.container else "device files", facts, names=names)


@check("on the GPUs", needs="answering")
def tenants(facts: Facts) -> Finding:
    """Who is on the GPUs now."""
    everybody = [(gpu, process) for gpu in facts.answering for process in gpu.processes]
    foreign = [f"{gpu.index}: {_describe_process(each)}" for gpu, each in everybody if not each.ours]
    if not everybody:
        return ok("nobody")
    ours = len({process.pid for _, process in everybody if process.ours})
    own = f"{ours} {'process' if ours == 1 else 'processes'} of cotenant's jobs" if ours else ""
    if not foreign:
        return ok(own)
    named = name_some(foreign, NAMED_MAX, "; ") + (f"; beside {own}" if own else "")
    return warn(named, "the scheduler does not know them; it does well to be alone on a GPU")


def _describe_process(process: GpuProcess) -> str:
    used = "" if process.memory_mib is None else f", {size(process.memory_mib)}"
    if not process.command:
        return f"pid {process.pid}{used}, which cannot be seen from here"
    return f"pid {process.pid} of {process.user}{used}: {_short(process.command)}"


def _short(command: str, characters: int = 48) -> str:
    return command if len(command) <= characters else command[: characters - 1] + "…"


@check("processes", needs="answering")
def process_numbers(facts: Facts) -> Finding | None:
    """Whether the driver's processes are those that can be seen from here."""
    if not facts.own_pids:
        return None
    return warn(
        "in a PID namespace of its own nobody can tell whose a process on a GPU is",
        "run the agent on the host, or its container with the host's processes (`--pid=host`); else memory "
        "in use after a job has ended is held against the device until its co-tenant has ended as well",
    )


@check("held memory")
def held_memory(facts: Facts) -> Finding | None:
    """Memory in use that no process accounts for."""
    held = [(gpu, mib) for gpu in facts.answering if (mib := held_mib(gpu)) is not None]
    if not held:
        return None
    much = [f"{gpu.index}: {size(mib)}" for gpu, mib in held if mib >= HELD_MIB_MIN]
    if not much:
        return ok("none: what is used belongs to processes that can be seen")
    todo = "a process of another container, or one that the driver still cleans up after; see nvidia-smi"
    return warn(f"{', '.join(much)}, by nobody who can be seen", todo)


def held_mib(gpu: GpuFacts) -> int | None:
    """Memory in use beyond that of known processes; None: a process's use, or the GPU's, is not known."""
    if gpu.used_mib is None or any(process.memory_mib is None for process in gpu.processes):
        return None
    return max(0, gpu.used_mib - sum(process.memory_mib or 0 for process in gpu.processes))


@check("clocks")
def clocks(facts: Facts) -> Finding | None:
    known = [gpu for gpu in facts.answering if gpu.clock_mhz is not None and gpu.clock_mhz_max]
    if not known:
        return None
    if slow := [gpu for gpu in known if gpu.slowed_by]:
        found = "; ".join(f"{gpu.index}: {_clock(gpu)}, {' and '.join(gpu.slowed_by)}" for gpu in slow)
        return warn(found, "see to cooling and power; step times measured now are too long")
    ranges = sorted(set(map(_clock, known)))[:NAMED_MAX]
    return ok(f"{', '.join(ranges)}; neither heat nor power holds them down")


def _clock(gpu: GpuFacts) -> str:
    return f"{gpu.clock_mhz} of {gpu.clock_mhz_max} MHz"


@check("links")
def links(facts: Facts) -> Finding | None:
    """How the GPUs of this host reach each other."""
    found = facts.driver.links
    if not found:
        return None
    by_path = _group(found, lambda link: link.path)
    words = ", ".join(f"{_pairs(group, len(found))} by {path}" for path, group in by_path.items())
    nvlinks = sorted({gpu.nvlinks for gpu in facts.answering if gpu.nvlinks})
    counts = f" ({' or '.join(map(str, nvlinks))} links each)" if nvlinks else ""
    without = [link for link in found if link.peer is False]
    blind = f"; no peer access between {_pairs(without, len(found))}" if without else ""
    return ok(f"{words}{counts}{blind}")


def _pairs(group: Sequence[GpuLink], of: int) -> str:
    if len(group) == of > 1:
        return f"all {of} pairs"
    return name_some([f"{link.first}-{link.second}" for link in group], NAMED_MAX, unit=" pairs")


GPU_CHECKS: Final[tuple[CheckFunction, ...]] = (
    gpus, driver, compute_mode, mig, persistence, memory_errors, counters, indicators, device_files, tenants,
    process_numbers, held_memory, clocks, links,
)  # fmt: skip
