"""The settings that the engine decides by: policy, limits and organisations.

Rule: a struct per TOML section, one line per key, as in `controller/system/sections.py`, where every section
stands; `cotenant config` prints these docstrings.
"""

from __future__ import annotations

from functools import cache
from typing import Final, Literal, NamedTuple

import msgspec

from cotenant.controller.domain.idling import check_idle_rule
from cotenant.controller.domain.job_spec import PRIORITY_MAX, SHARE_MAX_MAX, SHARE_MAX_MIN
from cotenant.controller.domain.texts import is_whole_number

AUTO: Final = "auto"
DEFAULT_POLICY: Final = "cotenant"
LATE_SHARE: Final = 0.75


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[policy]`"""

    name: str = AUTO
    """The policy at the first start (`auto`: `cotenant`); afterwards `cotenant policy set` and the journal
    decide."""
    ageing_s: float = 86_400.0
    """A job that waited longer goes first under size-based policies; 0 = off (as in the papers)."""
    late_share: float = LATE_SHARE
    """Under policies that order jobs by size, jobs that fifo would have served by now go first, on this share
    of the devices less eight; 0 = off, and `ageing_s` counts."""
    stop_deadline_s: float = 120.0
    """Time for a save after a stop request; then the job is ended and resumes from its last checkpoint."""
    infra_retries: int = 3
    """Infrastructure failures in a row before a job is held."""
    back_off_s: float = 10.0
    """Wait before the first retry; doubles each time."""
    resize_lease_s: float = 300.0
    """An elastic job is given another number of devices only after it has trained so long on those it has."""
    fair_share_half_life_s: float = 0.0
    """Who has used less of late goes first, before the policy's order; usage decays by half in so long (a
    week is usual: 604800). 0 = off."""
    fair_share_by: Literal["user", "organisation"] = "user"
    """Whose usage is added up."""
    promises: bool = True
    """Jobs may be promised an end (`submit --promise`, `--by`); then nothing is placed that breaks it."""
    promise_margin: float = 0.1
    """Share of a job's expected time that is added before it is promised."""

    @property
    def first(self) -> str:
        """The name of the policy at the first start."""
        return DEFAULT_POLICY if self.name == AUTO else self.name

    def __post_init__(self) -> None:
        if not 0.0 <= self.late_share <= 1.0:
            raise ValueError(f"policy.late_share must be 0 (off) to 1, got {self.late_share}")
        if not 0.0 <= self.resize_lease_s < 1e9:
            raise ValueError(f"policy.resize_lease_s must be at least 0, got {self.resize_lease_s}")
        if self.fair_share_half_life_s and not 1.0 <= self.fair_share_half_life_s < 1e9:
            raise ValueError(
                "policy.fair_share_half_life_s must be 0 (off) or at least 1, got "
                f"{self.fair_share_half_life_s}"
            )
        if not 0.0 <= self.promise_margin <= 10.0:
            raise ValueError(f"policy.promise_margin must be 0 to 10, got {self.promise_margin}")


def check_share_max(value: float, name: str, *, may_be_none: bool = True) -> None:
    """Raises ValueError where a bound on sharing is out of range; 0 stands for none."""
    if (value or not may_be_none) and not SHARE_MAX_MIN <= value <= SHARE_MAX_MAX:
        none = " (or 0 for none)" if may_be_none else ""
        raise ValueError(f"{name} must be {SHARE_MAX_MIN} to {SHARE_MAX_MAX:g}{none}, got {value}")


class SharingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[sharing]`"""

    max: float = 1.5
    """The bound of jobs that name none: their step time beside others is at most so many times that alone,
    where both co-tenants have no other bound; 0 = no bound."""
    hp: bool = False
    """Whether jobs of class hp have a bound, and under policies with classes may have a co-tenant at all."""
    hp_max: float = 1.05
    """The bound of jobs of class hp that name none."""
    accumulate: Literal["auto", "equivalent"] = "auto"
    """Whether jobs that draw random numbers in their forward pass may be split (`equivalent`: parts draw
    others than the whole batch)."""
    guest_min: float = 0.2
    """A job without a bound of its own is paused for another's down to this part of its speed alone; where
    it would be less, the two do not share."""

    @property
    def is_on(self) -> bool:
        """Whether jobs have a bound that they do not name themselves."""
        return self.max > 0.0 or self.hp

    def __post_init__(self) -> None:
        check_share_max(self.max, "sharing.max")
        check_share_max(self.hp_max, "sharing.hp_max", may_be_none=False)
        if not 0.01 <= self.guest_min <= 1.0:
            raise ValueError(f"sharing.guest_min must be 0.01 to 1, got {self.guest_min}")


NO_BOUNDS: Final = SharingSettings(max=0.0)
"""Sharing as it was before there were bounds: what an engine does that is told nothing."""


class IdleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[idle]`"""

    shell: str = "warn:30m,share:60m"
    """What is done about a job with a terminal that holds its devices idle, unless it says so itself
    (`--idle`): `none`, or steps such as `warn:30m,share:60m`."""
    batch: str = "warn:30m"
    """The same for all other jobs."""

    def __post_init__(self) -> None:
        for name in ("shell", "batch"):
            try:
                check_idle_rule(getattr(self, name))
            except ValueError as error:
                raise ValueError(f"idle.{name} {error}") from None


class JobLimit(NamedTuple):
    """What a user or an organisation has, or may have, at once; 0 in a limit: as much as there is."""

    devices: float
    """A part of a device counts as such."""
    jobs: int


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[limits]`"""

    user_devices: int = 0
    """Devices that each user's jobs may hold at once; 0 = as many as there are."""
    user_jobs: int = 0
    """Jobs of each user that may run at once; 0 = any number."""
    organisation_devices: int = 0
    """The same for all jobs of an organisation (`--org`)."""
    organisation_jobs: int = 0
    """The same for all jobs of an organisation."""
    exceptions: tuple[str, ...] = ()
    """For some: `user ann devices=16 jobs=8`, `organisation vision devices=0`."""
    user_priority: int = 0
    """The highest `--priority` that a user may ask for; admins may ask for any."""

    def __post_init__(self) -> None:
        for name in ("user_devices", "user_jobs", "organisation_devices", "organisation_jobs"):
            if getattr(self, name) < 0:
                raise ValueError(f"limits.{name} must not be negative, got {getattr(self, name)}")
        if not -PRIORITY_MAX <= self.user_priority <= PRIORITY_MAX:
            raise ValueError(
                f"limits.user_priority must be {-PRIORITY_MAX} to {PRIORITY_MAX}, got {self.user_priority}"
            )
        for text in self.exceptions:
            _exception(text)

    @property
    def any(self) -> bool:
        """Whether anything is limited."""
        return bool(
            self.user_devices
            or self.user_jobs
            or self.organisation_devices
            or self.organisation_jobs
            or self.exceptions
        )

    def limit_for(self, kind: Literal["user", "organisation"], name: str) -> JobLimit:
        """The limit of what one user or organisation may have; the last exception that names it counts."""
        limit = (
            JobLimit(self.user_devices, self.user_jobs)
            if kind == "user"
            else JobLimit(self.organisation_devices, self.organisation_jobs)
        )
        for text in self.exceptions:
            whose, others = _exception(text)
            if whose == (kind, name):
                limit = limit._replace(**others)
        return limit


@cache
def _exception(text: str) -> tuple[tuple[str, str], dict[str, int]]:
    """Whose it is, and what is different for them.

    Raises:
        ValueError: it does not read like the examples.
    """
    words = text.split()
    facts = [word.partition("=") for word in words[2:]]
    if (
        len(words) < 3
        or words[0] not in ("user", "organisation")
        or not all(name in JobLimit._fields and is_whole_number(number) for name, _, number in facts)
    ):
        raise ValueError(f"limits.exceptions: {text!r} is not like `user ann devices=16 jobs=8`")
    return (words[0], words[1]), {name: int(number) for name, _, number in facts}


class ReservationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[reservations]`"""

    device_hours_max: float = 48.0
    """Device-hours that a user's open reservations may have together, one that comes again counted once; 0 =
    users make none themselves. Admins may have any."""
    ahead_days_max: float = 14.0
    """How far ahead a user's reservation may begin, and how long one that comes again goes on."""
    lend_after_s: float = 900.0
    """A reserved device that its owner has not used for so long is lent to jobs that can be preempted."""

    def __post_init__(self) -> None:
        for name in ("device_hours_max", "ahead_days_max", "lend_after_s"):
            if not 0.0 <= getattr(self, name) < 1e9:
                raise ValueError(f"reservations.{name} must be at least 0, got {getattr(self, name)}")


class OrganisationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[organisations.NAME]`"""

    job_class: Literal["", "hp", "spot"] = msgspec.field(default="", name="class")
    """Of its jobs that are given none; empty = spot."""
    quota_devices: int = 0
    """Devices that its jobs of class spot may hold at once; 0 = as many as the quota of all spot jobs."""
    share_max: float = 0.0
    """The bound on sharing of its jobs that name none (`[sharing]`); 0 = as other jobs."""
    accumulate: Literal["", "auto", "equivalent"] = ""
    """`sharing.accumulate` for its jobs; empty = as other jobs."""

    def __post_init__(self) -> None:
        check_share_max(self.share_max, "share_max")
