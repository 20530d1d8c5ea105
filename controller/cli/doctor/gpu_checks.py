"""What this host's GPUs can do, in plain words: driver, sharing, counters, permissions, who is on them.

Rule: pure, from `DoctorFacts` alone. None of NVML's answers means "unknown": we say so or leave it out, and
never guess. A host without GPUs gets one line about that, not one for each thing it lacks. A counter that the
user could enable is a warning; one that these GPUs do not have is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from cotenant.controller.cli.doctor import enabling
from cotenant.controller.cli.doctor.check import (
    Check,
    DoctorFacts,
    all_of,
    answering,
    check_with_step,
    gpu_indices,
    numbers,
    uuids_of,
)
from cotenant.controller.cli.doctor.enabling import EnablingStep, privileged_command
from cotenant.controller.domain import HELD_MIB_MIN
from cotenant.controller.present.units import plural, size
from cotenant.profiler.driver.facts import (
    COMPUTE_DEFAULT,
    COMPUTE_MODES,
    COMPUTE_PROHIBITED,
    LOST,
    MISMATCH,
    NO_LIBRARY,
    NO_PERMISSION,
    NOT_LOADED,
    NOT_NVMLS,
    UNKNOWN,
    GpuFacts,
    GpuLink,
    GpuProcess,
)

NAMED_MAX: Final = 4
CUDA_MIN: Final = 11
"""What torch 2.5 needs, the oldest that checkpoints can be made with: it was built for CUDA 11.8 and 12."""


def gpus(facts: DoctorFacts) -> Check:
    """The GPUs of this host; the only check that a host without GPUs gets."""
    if facts.driver.problem:
        return _no_driver(facts)
    if not facts.driver.gpus:
        on_the_bus = facts.files.pci_devices or 0
        if on_the_bus:
            found = (
                f"{plural(on_the_bus, 'NVIDIA GPU')} on the bus, and driver {facts.driver.driver} serves none"
            )
            return check_with_step("GPUs", "fail", found, enabling.unsupported_gpu(facts.files))
        return Check("GPUs", "warn", "a driver, but no GPU", "is one passed through to this machine?")
    lost = [gpu for gpu in facts.driver.gpus if gpu.problem]
    if lost:
        found = "; ".join(f"{gpu.index}: {gpu.problem}" for gpu in lost)
        fallen = any(gpu.problem_code == LOST for gpu in lost)
        named = lost[0].uuid or str(lost[0].index)
        step = enabling.reboot(facts.files) if fallen else enabling.reset(named, facts.files)
        count = f"{len(lost)} of {len(facts.driver.gpus)}"
        return check_with_step("GPUs", "fail", f"{count} do not answer: {found}", step)
    missing = (facts.files.pci_devices or 0) - len(facts.driver.gpus)
    if (
        missing > 0 and not facts.files.container
    ):  # In a container the bus also shows GPUs of other containers.
        found = f"{len(facts.driver.gpus)} of {facts.files.pci_devices} on the bus: {missing} not served"
        return check_with_step("GPUs", "warn", found, enabling.unsupported_gpu(facts.files))
    alike = {
        what: [gpu for gpu in facts.driver.gpus if _describe_gpu(gpu) == what]
        for what in map(_describe_gpu, facts.driver.gpus)
    }
    return Check("GPUs", "ok", "; ".join(f"{gpu_indices(group)}: {what}" for what, group in alike.items()))


def _no_driver(facts: DoctorFacts) -> Check:
    answer, files = facts.driver, facts.files
    on_the_bus = files.pci_devices or 0
    if not on_the_bus and not files.module and answer.problem_code in (NOT_NVMLS, NO_LIBRARY, NOT_LOADED):
        todo = "CPU slots stand in for GPUs; see `cotenant up --devices cpu:2`"
        return Check("GPUs", "warn", f"none ({answer.problem})", todo)
    seen = f"{plural(on_the_bus, 'NVIDIA GPU')} on the bus, but " if on_the_bus else ""
    step = {
        NO_LIBRARY: enabling.install("driver", files),
        NOT_LOADED: enabling.load_driver(files),
        MISMATCH: enabling.mismatch(files),
        NO_PERMISSION: _permission_step(facts),
        **({UNKNOWN: enabling.let_container_in(files)} if files.container else {}),
    }.get(
        answer.problem_code,
        EnablingStep("`dmesg | grep NVRM` says what the driver met; often only a reboot helps"),
    )
    return check_with_step("GPUs", "fail", f"{seen}NVML: {answer.problem}", step)


def driver(facts: DoctorFacts) -> Check | None:
    if not facts.driver.gpus:
        return None
    cuda = "" if facts.driver.cuda is None else ", serves CUDA up to {}.{}".format(*facts.driver.cuda)
    found = f"{facts.driver.driver or 'of unknown version'}{cuda}"
    if facts.driver.cuda is None or facts.driver.cuda[0] > CUDA_MIN:
        return Check("driver", "ok", found)
    step = enabling.install("driver", facts.files)
    newer = EnablingStep(step.todo.replace("install", "install a newer one of", 1), step.command)
    if facts.driver.cuda[0] < CUDA_MIN:
        return check_with_step(
            "driver", "fail", f"{found}: torch 2.5, the oldest that works here, needs 11.8", newer
        )
    return check_with_step("driver", "warn", f"{found}: only torch built for CUDA 11.8 works with it", newer)


def compute_mode(facts: DoctorFacts) -> Check | None:
    """Whether two processes may be on a GPU at once."""
    known = [gpu for gpu in answering(facts) if gpu.compute_mode is not None]
    others = [gpu for gpu in known if gpu.compute_mode != COMPUTE_DEFAULT]
    if not known:
        return None
    if not others:
        return Check("compute mode", "ok", "DEFAULT: several processes may be on a GPU")
    names = sorted({COMPUTE_MODES.get(gpu.compute_mode or 0, "an unknown") for gpu in others})
    modes = f"{numbers(others)} in {' and '.join(names)} mode"
    uuids = uuids_of(others)
    if any(gpu.compute_mode == COMPUTE_PROHIBITED for gpu in others):
        step = enabling.compute_mode_default(uuids, facts.files, "allow processes on it again")
        return check_with_step("compute mode", "fail", f"{modes}: nothing can run there", step)
    why = "two jobs share it through MPS or not at all"
    step = enabling.compute_mode_default(uuids, facts.files, "unless you want that, allow several processes")
    return check_with_step("compute mode", "warn", f"{modes}: {why}", step)


def mig(facts: DoctorFacts) -> Check | None:
    split = [gpu for gpu in answering(facts) if gpu.mig]
    waiting = [gpu for gpu in answering(facts) if gpu.mig_next is not None and gpu.mig_next != bool(gpu.mig)]
    if waiting:
        after = "leave" if waiting[0].mig else "enter"
        found = f"{numbers(waiting)} will {after} MIG mode at the next reset"
        return check_with_step("MIG", "warn", found, enabling.mig_after_reset(uuids_of(waiting), facts.files))
    if not split:
        return None
    if empty := [gpu for gpu in split if not gpu.instances]:
        found = f"{numbers(empty)} in MIG mode without instances: nothing can run there"
        return check_with_step("MIG", "warn", found, enabling.mig_off(uuids_of(empty), facts.files))
    instances = sum(len(gpu.instances) for gpu in split)
    how = f"{plural(instances, 'instance')}; jobs name their type, one on each"
    return Check("MIG", "ok", f"{numbers(split)} in MIG mode ({how})")


def persistence(facts: DoctorFacts) -> Check | None:
    known = [gpu for gpu in answering(facts) if gpu.persistence is not None]
    without = [gpu for gpu in known if not gpu.persistence]
    if not known:
        return None
    if not without:
        return Check("persistence", "ok", "the driver stays loaded between jobs")
    daemon = ", and nvidia-persistenced runs without it" if facts.files.persistenced else ""
    found = f"off on {numbers(without)}{daemon}: the driver may unload between jobs"
    return check_with_step("persistence", "warn", found, enabling.persistence(facts.files))


def memory_errors(facts: DoctorFacts) -> Check | None:
    """Checks the errors that ECC counts: what was not corrected, and what waits for a reset."""
    alive = answering(facts)
    failed = [gpu for gpu in alive if gpu.remap_failed]
    if failed:
        found = f"{numbers(failed)} ran out of spare memory rows"
        return Check("memory errors", "fail", found, "take it out of service and have it replaced")
    bad = [gpu for gpu in alive if gpu.ecc_uncorrected or gpu.remap_pending]
    if bad:
        words = "; ".join(f"{gpu.index}: {_errors(gpu)}" for gpu in bad)
        return check_with_step("memory errors", "warn", words, enabling.reset(bad[0].uuid, facts.files))
    if not any(gpu.ecc_uncorrected is not None for gpu in alive):
        return None
    return Check("memory errors", "ok", "none that ECC could not correct")


def _errors(gpu: GpuFacts) -> str:
    words = [f"{plural(gpu.ecc_uncorrected, 'uncorrected error')}"] if gpu.ecc_uncorrected else []
    return " and ".join([*words, *(["memory waits to be replaced at a reset"] if gpu.remap_pending else [])])


def device_files(facts: DoctorFacts) -> Check | None:
    files = facts.files.device_files
    if not files and not facts.driver.gpus:
        return None
    closed = [file for file in files if not file.ours]
    if closed:
        names = ", ".join(
            f"{file.path} ({file.mode:o} {file.owner}:{file.group})" for file in closed[:NAMED_MAX]
        )
        step = _permission_step(facts)
        return check_with_step("device files", "fail", f"not for {facts.files.user}: {names}", step)
    if files and not any(file.path == "/dev/nvidia-uvm" for file in files):
        step = enabling.make_device_files(facts.files)
        return check_with_step("device files", "warn", "/dev/nvidia-uvm is missing: CUDA cannot start", step)
    if not files:
        return Check("device files", "ok", "none in /dev, and the driver answers all the same")
    return Check("device files", "ok", f"{plural(len(files), 'file')} in /dev, all for you")


def _permission_step(facts: DoctorFacts) -> EnablingStep:
    closed = [file for file in facts.files.device_files if not file.ours]
    by_group = [file.group for file in closed if file.mode & 0o060 == 0o060 and file.group != "root"]
    if by_group:
        return enabling.join_group(by_group[0], facts.files)
    if facts.files.container:
        return EnablingStep(
            "start the container with --gpus all; a rootless one needs rights on them on the host, too"
        )
    if closed:
        names = " ".join(file.path for file in closed[:NAMED_MAX])
        return EnablingStep(
            "open them (until the next boot; their mode comes from the driver's NVreg_DeviceFileMode)",
            privileged_command(f"sudo chmod a+rw {names}", facts.files),
        )
    return EnablingStep("their mode comes from the driver's NVreg_DeviceFileMode")


def tenants(facts: DoctorFacts) -> Check | None:
    """Who is on the GPUs now."""
    alive = answering(facts)
    if not alive:
        return None
    everybody = [(gpu, process) for gpu in alive for process in gpu.processes]
    foreign = [(gpu, process) for gpu, process in everybody if not process.ours]
    if not everybody:
        return Check("on the GPUs", "ok", "nobody")
    ours = len({process.pid for _, process in everybody if process.ours})
    own = f"{ours} {'process' if ours == 1 else 'processes'} of cotenant's jobs" if ours else ""
    if not foreign:
        return Check("on the GPUs", "ok", own)
    named = "; ".join(f"{gpu.index}: {_describe_process(process)}" for gpu, process in foreign[:NAMED_MAX])
    more = f" and {len(foreign) - NAMED_MAX} more" if len(foreign) > NAMED_MAX else ""
    todo = "the scheduler does not know them; it does well to be alone on a GPU"
    return Check("on the GPUs", "warn", f"{named}{more}" + (f"; beside {own}" if own else ""), todo)


def _describe_process(process: GpuProcess) -> str:
    used = "" if process.memory_mib is None else f", {size(process.memory_mib)}"
    if not process.command:
        return f"pid {process.pid}{used}, which cannot be seen from here"
    return f"pid {process.pid} of {process.user}{used}: {_short(process.command)}"


def _short(command: str, characters: int = 48) -> str:
    return command if len(command) <= characters else command[: characters - 1] + "…"


def process_numbers(facts: DoctorFacts) -> Check | None:
    """Whether the driver's processes are those that can be seen from here."""
    if not answering(facts) or not facts.files.own_pids:
        return None
    found = "in a PID namespace of its own nobody can tell whose a process on a GPU is"
    todo = (
        "run the agent on the host, or its container with the host's processes (`--pid=host`); else memory "
        "in use after a job has ended is held against the device until its co-tenant has ended as well"
    )
    return Check("processes", "warn", found, todo)


def held_memory(facts: DoctorFacts) -> Check | None:
    """Memory in use that no process accounts for."""
    held = [(gpu, mib) for gpu in answering(facts) if (mib := held_mib(gpu)) is not None]
    if not held:
        return None
    much = [(gpu, mib) for gpu, mib in held if mib >= HELD_MIB_MIN]
    if not much:
        return Check("held memory", "ok", "none: what is used belongs to processes that can be seen")
    words = ", ".join(f"{gpu.index}: {size(mib)}" for gpu, mib in much)
    todo = "a process of another container, or one that the driver still cleans up after; see nvidia-smi"
    return Check("held memory", "warn", f"{words}, by nobody who can be seen", todo)


def held_mib(gpu: GpuFacts) -> int | None:
    """Memory in use beyond that of known processes; None: a process's use, or the GPU's, is not known."""
    if gpu.used_mib is None or any(process.memory_mib is None for process in gpu.processes):
        return None
    return max(0, gpu.used_mib - sum(process.memory_mib or 0 for process in gpu.processes))


def clocks(facts: DoctorFacts) -> Check | None:
    known = [gpu for gpu in answering(facts) if gpu.clock_mhz is not None and gpu.clock_mhz_max]
    if not known:
        return None
    slow = [gpu for gpu in known if gpu.slowed_by]
    if slow:
        found = "; ".join(
            f"{g.index}: {g.clock_mhz} of {g.clock_mhz_max} MHz, {' and '.join(g.slowed_by)}" for g in slow
        )
        return Check(
            "clocks", "warn", found, "see to cooling and power; step times measured now are too long"
        )
    ranges = sorted({f"{gpu.clock_mhz} of {gpu.clock_mhz_max} MHz" for gpu in known})
    return Check("clocks", "ok", f"{', '.join(ranges[:NAMED_MAX])}; neither heat nor power holds them down")


def links(facts: DoctorFacts) -> Check | None:
    """How the GPUs of this host reach each other."""
    found = facts.driver.links
    if not found:
        return None
    words = [f"{_pairs(group, len(found))} by {path}" for path, group in _links_by_path(found).items()]
    without = [link for link in found if link.peer is False]
    nvlinks = sorted({gpu.nvlinks for gpu in answering(facts) if gpu.nvlinks})
    counts = f" ({' or '.join(map(str, nvlinks))} links each)" if nvlinks else ""
    blind = f"; no peer access between {_pairs(without, len(found))}" if without else ""
    return Check("links", "ok", f"{', '.join(words)}{counts}{blind}")


def _links_by_path(found: Iterable[GpuLink]) -> dict[str, list[GpuLink]]:
    groups: dict[str, list[GpuLink]] = {}
    for link in found:
        groups.setdefault(link.path, []).append(link)
    return groups


def _pairs(group: Sequence[GpuLink], of: int) -> str:
    if len(group) == of > 1:
        return f"all {of} pairs"
    shown = ", ".join(f"{link.first}-{link.second}" for link in group[:NAMED_MAX])
    return shown if len(group) <= NAMED_MAX else f"{shown} and {len(group) - NAMED_MAX} more pairs"


def _describe_gpu(gpu: GpuFacts) -> str:
    capability = "" if gpu.capability is None else ", compute capability {}.{}".format(*gpu.capability)
    return f"{gpu.name}, {size(gpu.memory_mib)}{capability}"


def counters(facts: DoctorFacts) -> Check | None:
    """Checks where indicators come from: GPM on Hopper and later, else DCGM, else what plain NVML has."""
    whole, files = [gpu for gpu in answering(facts) if not gpu.mig], facts.files
    if not whole:
        return None
    with_gpm = [gpu for gpu in whole if gpu.gpm and not gpu.gpm_problem]
    if len(with_gpm) == len(whole):
        return Check("counters", "ok", f"GPM on {all_of(whole)}, and you may read them")
    refused = [gpu for gpu in whole if gpu.gpm and gpu.gpm_problem]
    if refused:
        found = f"GPM, but not for {files.user or 'you'}: {refused[0].gpm_problem}"
        return check_with_step("counters", "warn", found, _allowed_step(facts))
    plain = "plain NVML: coarse use, no multiprocessor or tensor counters"
    if files.exporter or (files.hostengine and files.dcgm_bindings):
        via = "dcgm-exporter" if files.exporter else "DCGM's host engine"
        restricted = files.profiling_for_admins and not files.administrator and not files.exporter
        who = "; the engine reads them for you" if restricted else ""
        without = numbers([gpu for gpu in whole if not gpu.gpm])
        return Check("counters", "ok", f"no GPM on {without}, but {via} answers{who}")
    where = f"GPM on {numbers(with_gpm)}; {numbers([g for g in whole if not g.gpm])}: " if with_gpm else ""
    if all("GeForce" in gpu.name for gpu in whole if not gpu.gpm):
        return Check("counters", "ok", f"{where}{plain}; NVIDIA has those for data-centre GPUs only")
    if files.dcgm_bindings:
        found = f"{where}no GPM, and DCGM is installed but its host engine does not answer: {plain}"
        return check_with_step("counters", "warn", found, enabling.start_hostengine(files))
    if files.dcgm_old:
        found = f"{where}no GPM, and an old DCGM without its Python bindings: {plain}"
        return check_with_step("counters", "warn", found, enabling.install("dcgm", files))
    found = f"{where}no GPM (it came with Hopper) and no DCGM: {plain}"
    return check_with_step("counters", "warn", found, enabling.install("dcgm", files))


def indicators(facts: DoctorFacts) -> Check | None:
    """The source that the agent will use here, found as the agent does: by whether it gives a value."""
    tried = facts.indicators
    if tried is None:
        return None
    if tried.chosen is None:
        return Check("indicators", "warn", tried.why, "see `counters`; until then profiles have none")
    return Check("indicators", "ok", tried.why)


def _allowed_step(facts: DoctorFacts) -> EnablingStep:
    """The driver keeps counters for administrators, or refuses for another reason."""
    if facts.files.administrator or facts.files.profiling_for_admins is False:
        return EnablingStep(
            "the driver refuses for another reason: `dmesg | grep NVRM`; indicators are missing until then"
        )
    return enabling.profiling_for_everybody(facts.files)


GPU_CHECKS: Final[tuple[Callable[[DoctorFacts], Check | None], ...]] = (
    gpus,
    driver,
    compute_mode,
    mig,
    persistence,
    memory_errors,
    counters,
    indicators,
    device_files,
    tenants,
    process_numbers,
    held_memory,
    clocks,
    links,
)
