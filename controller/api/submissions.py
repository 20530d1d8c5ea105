"""From a submission to numbered, checked jobs. Pure: says what is wrong before anything happens.

Rule: all jobs of a submission are accepted together or not at all, and what a message claims about its
sender counts for nothing: user, uid and groups come from the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from cotenant.controller import domain
from cotenant.controller.system.keys import Identity
from cotenant.controller.system.secrets import SECRET_NAME
from cotenant.controller.wire import JOBS_MAX, LAUNCH_BYTES_MAX
from cotenant.controller.wire import clients as wire

INDEX_MAX: Final = 999_999
DEPENDENCIES_MAX: Final = 100_000
"""Of one submission; an array counts as its tasks."""
LIST_HINT: Final = "`cotenant queue --all` lists jobs"

Code = Literal["refused", "usage", "not-found", "not-allowed", "never-fits", "version", "internal"]


class Denied(Exception):
    """A request that is not carried out: becomes a `Failure`."""

    def __init__(self, code: Code, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code: Code = code
        self.hint = hint


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that may arrive, and the values that must be stored first."""

    specs: tuple[domain.JobSpec, ...]
    secrets: dict[str, str]


def accept(
    request: wire.Submit,
    who: Identity,
    first_number: int,
    jobs: Mapping[domain.JobId, domain.Job],
    organisations: Mapping[str, domain.OrganisationSettings] = MappingProxyType({}),
    idle: domain.IdleSettings = domain.IdleSettings(),  # noqa: B008
    sharing: domain.SharingSettings = domain.NO_BOUNDS,
) -> Accepted:
    """Accepts the jobs of a submission. Raises Denied: what is wrong, with the job's name where there are
    several."""
    check_size(request)
    job_ids = assign_numbers(request, first_number)
    placeholders: dict[domain.JobId, domain.JobId] = {}
    specs, values = [], dict(request.secrets)
    arrays: dict[domain.JobId, list[domain.JobId]] = {}
    dependencies = 0
    for spec, job_id in zip(request.specs, job_ids, strict=True):
        after = tuple(resolve_dependencies(spec, placeholders, jobs, arrays))
        dependencies += len(after)
        if dependencies > DEPENDENCIES_MAX:
            raise Denied(
                "usage", f"more than {DEPENDENCIES_MAX} dependencies in one submission", "split it up"
            )
        if spec.job_id in placeholders:
            raise Denied("usage", f"two jobs of one submission are called {spec.job_id}")
        placeholders[spec.job_id] = job_id
        if request.default_class:
            spec = add_default_class(spec, organisations)
        if allows_equivalent(spec, organisations, sharing):
            spec = msgspec.structs.replace(spec, launch=spec.launch.allow_equivalent())
        if not spec.idle:
            rule = idle.shell if spec.launch.terminal else idle.batch
            spec = msgspec.structs.replace(spec, idle=rule)
        specs.append(add_owner(spec, job_id, after, who, values))
    used = {name for spec in specs for name in spec.launch.secrets}
    return Accepted(
        specs=tuple(specs), secrets={name: values[name] for name in sorted(used) if name in values}
    )


def check_size(request: wire.Submit) -> None:
    count = len(request.specs)
    if not 1 <= count <= JOBS_MAX:
        raise Denied("usage", f"a submission has 1 to {JOBS_MAX} jobs, this one has {count}", "split it up")
    indices = request.array_indices
    if indices and (len(indices) != count or len(set(indices)) != count):
        raise Denied(
            "usage", f"an array of {count} tasks needs as many different indices, got {len(set(indices))}"
        )
    if any(not 0 <= index <= INDEX_MAX for index in indices):
        raise Denied("usage", f"array indices are 0 to {INDEX_MAX}")
    for spec in request.specs:
        if not spec.launch.argv or not spec.launch.argv[0]:
            raise Denied("usage", "there is no command to run", "put it behind `--`")
        if launch_bytes(spec) > LAUNCH_BYTES_MAX:
            raise Denied("usage", f"command and environment are larger than {LAUNCH_BYTES_MAX} bytes")
        if not spec.launch.workdir.startswith("/"):
            raise Denied("usage", f"working directory {spec.launch.workdir!r} is not an absolute path")


def launch_bytes(spec: domain.JobSpec) -> int:
    words = (*spec.launch.argv, *spec.launch.env, *spec.launch.env.values(), spec.launch.workdir)
    return len("".join(words).encode(errors="surrogateescape"))


def assign_numbers(request: wire.Submit, first_number: int) -> list[domain.JobId]:
    if request.array_indices:
        return [domain.JobId(f"{first_number}_{index}") for index in request.array_indices]
    return [domain.JobId(str(first_number + at)) for at in range(len(request.specs))]


def resolve_dependencies(
    spec: domain.JobSpec,
    placeholders: Mapping[domain.JobId, domain.JobId],
    jobs: Mapping[domain.JobId, domain.Job],
    arrays: dict[domain.JobId, list[domain.JobId]],
) -> Iterator[domain.Dependency]:
    """What it waits for, by number: earlier jobs of the submission, known jobs, tasks of an array."""
    for dependency in spec.after:
        wanted = dependency.job_id
        if wanted in placeholders:
            yield domain.Dependency(job_id=placeholders[wanted], need=dependency.need)
            continue
        if wanted not in arrays:
            arrays[wanted] = _jobs_of_text(wanted, jobs)
        found = arrays[wanted]
        if not found:
            raise Denied(
                "usage",
                f"it should start after job {wanted}, which is not known (any more)",
                LIST_HINT,
            )
        yield from (domain.Dependency(job_id=job_id, need=dependency.need) for job_id in found)


def _jobs_of_text(text: str, jobs: Mapping[domain.JobId, domain.Job]) -> list[domain.JobId]:
    """The jobs that the text names; empty if it names one that is not known."""
    try:
        found = [expand_word(word, jobs) for word in domain.read_job_words((text,))]
    except ValueError:
        return []
    return [job_id for each in found for job_id in each] if all(found) else []


def job_words(given: Iterable[str]) -> list[domain.JobWord]:
    """The jobs that these texts name. Raises Denied: a word is no job's."""
    try:
        return domain.read_job_words(given)
    except ValueError as error:
        raise Denied("usage", str(error), LIST_HINT) from None


def expand_word(word: domain.JobWord, jobs: Mapping[domain.JobId, domain.Job]) -> list[domain.JobId]:
    """The job itself, the tasks of an array that the word names, or the task of which it is the SLURM_JOB_ID;
    empty if there is none."""
    if (job_id := domain.JobId(str(word))) in jobs:
        return [job_id]
    tasks = sorted((known for known in jobs if word.has_task(known)), key=domain.natural_key)
    if tasks or word.indices is not None:
        return tasks
    return [known for known, job in jobs.items() if job.number == int(word.number)]


def add_default_class(
    spec: domain.JobSpec, organisations: Mapping[str, domain.OrganisationSettings]
) -> domain.JobSpec:
    """Returns the spec with the class that jobs of its organisation have by default."""
    known = organisations.get(spec.organisation)
    if known is None or not known.job_class:
        return spec
    return msgspec.structs.replace(spec, job_class=known.job_class)


def allows_equivalent(
    spec: domain.JobSpec,
    organisations: Mapping[str, domain.OrganisationSettings],
    sharing: domain.SharingSettings,
) -> bool:
    """Whether the settings let its batches be split although parts draw other random numbers."""
    known = organisations.get(spec.organisation)
    said = known.accumulate if known is not None else ""
    return (said or sharing.accumulate) == "equivalent"


def add_owner(
    spec: domain.JobSpec,
    job_id: domain.JobId,
    after: Sequence[domain.Dependency],
    who: Identity,
    values: dict[str, str],
) -> domain.JobSpec:
    """The spec with its number and its owner; variables that look like secrets move to `values`."""
    launch = spec.launch
    overlooked = {name: value for name, value in launch.env.items() if SECRET_NAME.search(name)}
    values.update(overlooked)
    env = {name: value for name, value in launch.env.items() if name not in overlooked}
    names = tuple(sorted({*launch.secrets, *overlooked}))
    launch = msgspec.structs.replace(
        launch, env=env, secrets=names, uid=who.uid, gid=who.gid, groups=who.groups
    )
    try:
        return msgspec.structs.replace(spec, job_id=job_id, user=who.name, after=tuple(after), launch=launch)
    except ValueError as error:
        raise Denied("usage", str(error)) from None
