"""Whether a policy's placement is allowed, and what it means in memory.

Rule: pure checks against the ledger. A policy may be wrong, old or hostile; what passes here keeps
promise 1 (tenants, memory, whole gangs), whatever it asked for.

Rule: a job that only runs to be measured takes what is free. Whatever a policy says, the engine preempts
nobody for it: it refuses both the preemption and the placement on the victim's devices.

Rule: whether the hosts have the cores and the main memory that the job asks for, the engine asks when a
policy decides, and does not record what is refused. Jobs that leave count until their processes on the host
are gone, unless the placement waits for these anyway because they hold its devices there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cotenant.controller import domain, planning
from cotenant.controller.engine.state.ledger import Ledger


def plain(
    ledger: Ledger, job: domain.Job, action: domain.Place | domain.Share, *, policy_shares: bool
) -> tuple[domain.Placement, list[domain.JobId]] | None:
    """The common case, decided with all of `check` at once: the whole batch on devices of one suitable host
    that are free or that all their tenants are leaving. Returns the placement and who has to leave first;
    None: it may still be allowed."""
    devices = action.devices
    if job.phase is not domain.QUEUED or action.accumulation_steps != 1:
        return None
    spec, count = job.spec, len(devices)
    if not spec.gpus_min == spec.gpus_max == count or spec.nodes > 1 or spec.gpu_fraction < 1.0:
        return None
    known, scheduling_class = ledger.devices, ledger.queue.class_of(job)
    if devices[0] not in known:
        return None
    first = known[devices[0]]
    host, type = ledger.hosts[first.host_id], first.type
    if not (domain.is_type_for(scheduling_class.gpu_type, type) and planning.suits(host, scheduling_class)):
        return None
    if count > 1:
        if count != len(set(devices)):
            return None
        devices = tuple(sorted(devices))
    needed, free, victims = job.needed_mib(1), ledger.free.devices[first.host_id, type], list[domain.JobId]()
    for device_id in devices:
        if device_id not in free:  # Where its host takes work, it would be there.
            here = ledger.holdings.being_left(device_id)
            if not here or known[device_id].host_id != first.host_id or known[device_id].type != type:
                return None
            victims += here
        if needed is not None and known[device_id].memory_mib - known[device_id].reserve_mib < needed:
            return None
    if victims and not host.takes_work:
        return None
    found = domain.Placement(
        devices=devices,
        sub_batch=job.batch_size,
        memory_mib=needed,
        capped=policy_shares and _may_get_co_tenants(ledger, job, devices),
        reason=action.reason,
    )
    return found, victims


def check(ledger: Ledger, action: domain.Place | domain.Share) -> domain.Reason | None:
    """Why the placement is refused, or None if it is allowed."""
    job = ledger.jobs.get(action.job_id)
    if job is None or job.phase is not domain.QUEUED:
        return domain.because("refused-phase", f"job {action.job_id}", job.phase if job else "gone")
    return check_places(ledger, job, action)


def check_places(
    ledger: Ledger, job: domain.Job, action: domain.Place | domain.Share, own: Sequence[domain.DeviceId] = ()
) -> domain.Reason | None:
    """Why a job may not have these devices, whatever its phase; `own`: devices that it already has alone."""
    spec = job.spec
    count = len(action.devices)
    if (count > 1 and count != len(set(action.devices))) or not spec.gpus_min <= count <= spec.gpus_max:
        distinct = len(set(action.devices))
        return domain.because("refused-gang", f"job {job.job_id}", distinct, spec.gpus_min, spec.gpus_max)
    if not spec.takes(count):
        return _not_divided(job, count)
    refusal = _check_accumulation(job, action.accumulation_steps)
    if refusal is not None:
        return refusal
    refusal = _check_gang(ledger, job, action.devices)
    if refusal is not None:
        return refusal
    scheduling_class, needed = ledger.queue.class_of(job), job.needed_mib(action.accumulation_steps)
    for device_id in action.devices:
        if device_id in own and ledger.devices[device_id].healthy and _takes_work(ledger, device_id):
            continue
        refusal = _check_device(ledger, job, action, device_id, scheduling_class, needed)
        if refusal is not None:
            return refusal
    return None


def _not_divided(job: domain.Job, count: int) -> domain.Reason:
    spec = job.spec
    if spec.nodes and count % spec.nodes:
        on = f"{count} on {spec.nodes} nodes"
        return domain.because("refused-gang", f"job {job.job_id}", on, spec.gpus_min, spec.gpus_max)
    return domain.because("refused-size", f"job {job.job_id}", (spec.batch_size or 0) * spec.gpus_max, count)


def _check_accumulation(job: domain.Job, steps: int) -> domain.Reason | None:
    if steps == 1:
        return None
    what, batch = f"job {job.job_id}", job.batch_size
    if job.spec.is_elastic:
        return domain.because("refused-accumulation", what, steps, "it is elastic")
    if batch is None or not 1 <= steps <= batch:
        return domain.because("refused-accumulation", what, steps, f"its batch is {batch or 'not known'}")
    if not job.can_accumulate:
        return domain.because("refused-accumulation", what, steps, "it was never seen to accumulate")
    return None


def _check_gang(
    ledger: Ledger, job: domain.Job, devices: tuple[domain.DeviceId, ...]
) -> domain.Reason | None:
    what = f"job {job.job_id}"
    by_host: dict[str, int] = {}
    for device_id in devices:
        device = ledger.devices.get(device_id)
        if device is None:
            return domain.because("refused-devices", what, device_id, "unknown")
        by_host[device.host_id] = by_host.get(device.host_id, 0) + 1
    if job.spec.nodes and (len(by_host) != job.spec.nodes or len(set(by_host.values())) != 1):
        return domain.because(
            "refused-gang", what, f"{len(by_host)} hosts for {len(devices)}", job.spec.nodes, job.spec.nodes
        )
    if len(by_host) > 1:
        for device_id in devices:
            host = ledger.hosts[ledger.devices[device_id].host_id]
            if host.report.address.startswith("127."):
                return domain.because(
                    "refused-devices", what, device_id, "its host has no address for gangs over hosts"
                )
    return None


def _takes_work(ledger: Ledger, device_id: domain.DeviceId) -> bool:
    return ledger.hosts[ledger.devices[device_id].host_id].takes_work


def _check_device(
    ledger: Ledger,
    job: domain.Job,
    action: domain.Place | domain.Share,
    device_id: domain.DeviceId,
    scheduling_class: planning.SchedulingClass,
    needed: int | None,
) -> domain.Reason | None:
    what = f"job {job.job_id}"
    device = ledger.devices[device_id]
    host = ledger.hosts[device.host_id]
    if not (host.takes_work and ledger.bookings.admits(device, job.spec.user)):
        return domain.because(
            "refused-devices", what, device_id, host.state if device.healthy else device.note
        )
    if not (
        domain.is_type_for(scheduling_class.gpu_type, device.type) and planning.suits(host, scheduling_class)
    ):
        return domain.because("refused-devices", what, device_id, "not what the job asked for")
    claim = ledger.holdings.claimed_by(device_id)
    if claim is not None:
        return domain.because("refused-devices", what, device_id, f"reserved for job {claim}")
    staying = [
        ledger.jobs[t]
        for t in ledger.holdings.tenants(device_id)
        if ledger.jobs[t].phase not in domain.LEAVING
    ]
    if isinstance(action, domain.Place) and staying and job.spec.gpu_fraction < 1.0:
        why_not = planning.why_no_part(job, device, ledger.holdings.parts(device_id))
        return None if why_not is None else domain.because("refused-part", what, domain.render(why_not))
    if isinstance(action, domain.Place) and staying:
        return domain.because("refused-tenants", what, device_id, len(staying))
    if len(staying) >= device.max_tenants:
        return domain.because("refused-tenants", what, device_id, len(staying))
    if not staying:
        if needed is not None and needed > device.usable_mib:
            return domain.because("refused-memory", what, needed, device_id, device.usable_mib)
        return None
    return _check_sharing(ledger, job, device_id, staying, needed)


def _check_sharing(
    ledger: Ledger, job: domain.Job, device_id: domain.DeviceId, staying: list[domain.Job], needed: int | None
) -> domain.Reason | None:
    what = f"job {job.job_id}"
    device = ledger.devices[device_id]
    alone = planning.why_alone(job)
    if alone is not None:
        return alone
    is_limited = needed is None  # To what is left beside them, where that costs nobody more than a trial.
    for other in staying:
        theirs = planning.why_alone(other, beside=job)
        if theirs is not None:
            return theirs
        if device.sharing == "mps" and other.spec.launch.uid != job.spec.launch.uid:
            return domain.because("refused-uid", what, device_id)
        known = ledger.pairs.interference(job, other)
        if known.crowded:
            return domain.because("sharing-crowded", other.job_id)
        if known.faulted:
            return domain.because("sharing-faulted", other.job_id)
        if known.over_bound and known.trial is None:
            return domain.because("sharing-bound", other.job_id)
        is_limited = is_limited and known.trial is not None
    planned = [planning.tenant_mib(other) for other in staying]
    if (needed is None and not is_limited) or any(p is None for p in planned):
        unknown = job.job_id if needed is None else staying[0].job_id
        return domain.because(
            "sharing-unknown", staying[0].job_id, f"the memory that job {unknown} needs is not known"
        )
    left = _left_mib(ledger, device_id)
    if (needed or 1) > left:
        return domain.because("refused-memory", what, needed or 1, device_id, left)
    return None


def _left_mib(ledger: Ledger, device_id: domain.DeviceId) -> int:
    """The memory of a device in MiB that its tenants leave; one that leaves the device has left it."""
    tenants = (ledger.jobs[job_id] for job_id in ledger.holdings.tenants(device_id))
    planned = sum(
        planning.tenant_mib(tenant) or 0 for tenant in tenants if tenant.phase not in domain.LEAVING
    )
    return ledger.devices[device_id].usable_mib - planned


def placement(
    ledger: Ledger,
    job: domain.Job,
    action: domain.Place | domain.Share | domain.Resize,
    *,
    policy_shares: bool,
) -> domain.Placement:
    """The placement of an allowed action; devices in rank order, one host's together.
    `policy_shares`: the policy may later put another job beside this one."""
    devices = action.devices
    if len(devices) > 1:
        devices = tuple(sorted(devices, key=lambda d: (ledger.devices[d].host_id, d)))
    steps = 1 if isinstance(action, domain.Resize) else action.accumulation_steps
    memory_mib, batch = job.needed_mib(steps), job.batch_size
    if job.spec.is_elastic:
        batch = job.spec.rows(len(devices))
        steps = 1 if job.must_stay_whole else job.spec.micro_batches(len(devices))
    tenants = (
        t for d in devices for t in ledger.holdings.tenants(d) if ledger.jobs[t].phase not in domain.LEAVING
    )
    beside = tuple(dict.fromkeys(tenants)) if isinstance(action, domain.Share) else ()
    if memory_mib is None and beside:
        memory_mib = min(_left_mib(ledger, device_id) for device_id in devices)
    first = ledger.devices[devices[0]]
    fraction = planning.fraction_of(job, first)
    if fraction < 1.0:
        memory_mib = planning.part_mib(job, first, fraction)
    return domain.Placement(
        devices=devices,
        accumulation_steps=steps,
        sub_batch=None if batch is None else -(-batch // steps),
        memory_mib=memory_mib,
        slowdown=job.split_slowdown(steps, len(devices)),
        capped=fraction < 1.0 or (policy_shares and _may_get_co_tenants(ledger, job, devices)),
        beside=beside,
        fraction=fraction,
        reason=action.reason,
    )


def size_on(ledger: Ledger, job: domain.Job, devices: Sequence[domain.DeviceId]) -> float:
    """How many devices the job would have; below 1: a part of one."""
    first = ledger.devices.get(devices[0]) if devices and job.spec.gpu_fraction < 1.0 else None
    return len(devices) if first is None else planning.fraction_of(job, first)


def waits_for(ledger: Ledger, job: domain.Job, placement: domain.Placement) -> list[domain.JobId]:
    """Who has to leave these devices first: all tenants that are leaving, unless the job's part fits beside
    them."""
    if placement.fraction < 1.0:
        device = ledger.devices[placement.devices[0]]
        if planning.why_no_part(job, device, ledger.holdings.parts(device.device_id)) is None:
            return []
    return [
        t
        for d in placement.devices
        for t in ledger.holdings.tenants(d)
        if ledger.jobs[t].phase in domain.LEAVING
    ]


def _may_get_co_tenants(ledger: Ledger, job: domain.Job, devices: tuple[domain.DeviceId, ...]) -> bool:
    """Whether its memory is limited from the start, since a limit cannot be set on a process that runs. CPU
    slots enforce none; and a job of unknown memory gets no co-tenant."""
    return planning.why_alone(job) is None and all(
        ledger.devices[d].kind == "cuda" and ledger.devices[d].max_tenants > 1 for d in devices
    )


def find_spared(ledger: Ledger, actions: Sequence[domain.AnyAction]) -> list[domain.AnyAction]:
    """Jobs that a decision would preempt for a job that only runs to be measured."""
    measured = [
        each
        for each in actions
        if type(each) is domain.Place
        and each.job_id in ledger.jobs
        and ledger.jobs[each.job_id].spec.profiling == "only"
    ]
    if not measured:
        return []
    wanted = {device_id for each in measured for device_id in each.devices}
    preempting = [
        each
        for each in actions
        if isinstance(each, domain.Preempt) and not wanted.isdisjoint(_held_by(ledger, each.job_id))
    ]
    taken = {device_id for each in preempting for device_id in _held_by(ledger, each.job_id)}
    return [*preempting, *(each for each in measured if not taken.isdisjoint(each.devices))]


def _held_by(ledger: Ledger, job_id: domain.JobId) -> tuple[domain.DeviceId, ...]:
    job = ledger.jobs.get(job_id)
    return job.placement.devices if job is not None and job.placement is not None else ()


def exceeds_hosts(
    ledger: Ledger, action: domain.Place | domain.Share | domain.Resize
) -> domain.Reason | None:
    """Why the hosts do not have what the job asks for; None if they do, or nothing is asked."""
    if action.job_id not in ledger.jobs:
        return None
    job = ledger.jobs[action.job_id]
    spec = job.spec
    if not (spec.cpus or spec.host_memory_mib):
        return None
    by_host: dict[domain.HostId, list[domain.DeviceId]] = {}
    for device_id in action.devices:
        by_host.setdefault(ledger.holdings.host_of(device_id), []).append(device_id)
    for host_id, devices in by_host.items():
        if host_id not in ledger.hosts:
            continue  # It is refused for that.
        tenants = {job_id for device_id in devices for job_id in ledger.holdings.tenants(device_id)}
        waited_for = {job_id for job_id in tenants if ledger.jobs[job_id].phase in domain.LEAVING}
        room = _room(ledger, host_id, {*waited_for, job.job_id})
        if not room.holds(spec.cpus, spec.host_memory_mib):
            return domain.because("refused-host-room", f"job {job.job_id}", host_id, *left_over(room))
    return None


def _room(ledger: Ledger, host_id: domain.HostId, without: Iterable[domain.JobId]) -> domain.HostRoom:
    gone = set(without)
    here = (each for each in ledger.holdings.asking_on(host_id) if each.job_id not in gone)
    return domain.room_left(ledger.hosts[host_id].report, here)


def left_over(room: domain.HostRoom) -> tuple[int, str]:
    """The room on a host, in words."""
    return max(0, room.cpus), "any" if room.memory_mib is None else f"{max(0, room.memory_mib)} MiB of"
