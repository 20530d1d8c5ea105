"""Where the indicators of this host's GPUs come from, and who may read them. Pure, from `DoctorFacts` alone.

Rule: a counter that the user could enable is a warning; one that these GPUs do not have is not.
"""

from __future__ import annotations

from cotenant.controller.cli.doctor import enabling
from cotenant.controller.cli.doctor.check import Check, DoctorFacts, all_of, answering, checked, numbers
from cotenant.controller.cli.doctor.enabling import EnablingStep


def counters(facts: DoctorFacts) -> Check | None:
    """Where indicators come from: GPM on Hopper and later, else DCGM, else what plain NVML has."""
    whole, files = [gpu for gpu in answering(facts) if not gpu.mig], facts.files
    if not whole:
        return None
    with_gpm = [gpu for gpu in whole if gpu.gpm and not gpu.gpm_problem]
    if len(with_gpm) == len(whole):
        return Check("counters", "ok", f"GPM on {all_of(whole)}, and you may read them")
    refused = [gpu for gpu in whole if gpu.gpm and gpu.gpm_problem]
    if refused:
        found = f"GPM, but not for {files.user or 'you'}: {refused[0].gpm_problem}"
        return checked("counters", "warn", found, _allowed_step(facts))
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
        return checked("counters", "warn", found, enabling.start_hostengine(files))
    if files.dcgm_old:
        found = f"{where}no GPM, and an old DCGM without its Python bindings: {plain}"
        return checked("counters", "warn", found, enabling.install("dcgm", files))
    found = f"{where}no GPM (it came with Hopper) and no DCGM: {plain}"
    return checked("counters", "warn", found, enabling.install("dcgm", files))


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
