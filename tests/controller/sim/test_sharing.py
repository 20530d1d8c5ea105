"""What sharing brought in a simulated world, and pairs that lose there: by hand, and under every policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from cotenant.controller.domain import SharingSettings
from cotenant.controller.sim import policies_named
from cotenant.controller.sim.results.summary import summarise
from cotenant.controller.sim.simulate import simulate
from cotenant.controller.sim.world.outcome import RunResult
from cotenant.controller.sim.world.physics import Failures, Physics, bound_ratios, ratio_row
from tests.controller.sim.workloads import JobRow, cluster, workload

SHARING = ("castor", "castor-cost", "sjf-ffs", "lucid")


@pytest.fixture
def world(tmp_path: Path) -> Physics:
    """a and b get along, a and c lose a lot."""
    rows = ["a,1,b,1,1.25,1.25", "a,1,c,1,4.0,4.0", "b,1,c,1,1.0,1.0", "a,1,a,1,1.5,1.5"]
    file = tmp_path / "pairs.csv"
    file.write_text("\n".join(["model1,batch1,model2,batch2,xi1,xi2", *rows, ""]))
    return Physics(pairs=str(file), xi="measured")


def sixty_rows() -> list[JobRow]:
    """Gangs of up to six, of three models, one every 20 s."""
    chance = np.random.default_rng(7)
    return [
        JobRow(
            float(n * 20),
            float(chance.integers(20, 900)),
            gpus=int(chance.choice([1, 1, 2, 4, 6])),
            model=str(chance.choice(["a", "b", "c"])),
        )
        for n in range(60)
    ]


class TestBenefit:
    def test_a_guest_against_waiting_for_its_partner(self, world: Physics) -> None:
        jobs = workload(JobRow(0, 1000, model="a"), JobRow(130, 100, model="b"))
        outcome = simulate(jobs, cluster(1), "sjf-ffs", physics=world, validate=True)
        # It would have waited until 1030, and shared it ends after its load and 100 s at 1.25.
        assert outcome.sharing_benefit[1] == pytest.approx((900 + 30 + 100) / (30 + 125))
        assert np.isnan(outcome.sharing_benefit[0]), "it was at home"
        known = summarise(outcome)["sharing_benefit"]
        assert known == {"mean": known["p50"], "p50": pytest.approx(1030 / 155), "jobs": 1}

    def test_waiting_is_for_the_first_devices_not_for_the_partner(self, world: Physics) -> None:
        jobs = workload(JobRow(0, 1000, model="a"), JobRow(0, 200, model="a"), JobRow(130, 100, model="b"))
        outcome = simulate(jobs, cluster(1, 2), "sjf-ffs", physics=world, validate=True)
        assert outcome.sharing_benefit[2] == pytest.approx((100 + 30 + 100) / (30 + 125))

    def test_the_wait_before_it_shared_counts_on_both_sides(self, world: Physics) -> None:
        jobs = workload(
            JobRow(0, 300, model="a"), JobRow(10, 100, model="b"), JobRow(20, 200, model="b", load_s=0)
        )
        outcome = simulate(jobs, cluster(1), "sjf-ffs", physics=world, validate=True)
        # The second ends at 165; then the first has 190 s left, and the third joins it until 412.5.
        assert outcome.jct_s[2] == pytest.approx(412.5 - 20)
        assert outcome.sharing_benefit[2] == pytest.approx((145 + 190 + 200) / (412.5 - 20))

    def test_nobody_shared_nothing_to_tell(self, world: Physics) -> None:
        jobs = workload(JobRow(0, 1000, model="a"), JobRow(130, 100, model="b"))
        assert summarise(simulate(jobs, cluster(1), "fifo", physics=world))["sharing_benefit"] is None


class TestParting:
    @pytest.mark.parametrize("policy", ["sjf-ffs", "lucid"])
    def test_a_pair_that_loses_is_parted_after_some_reports(self, world: Physics, policy: str) -> None:
        learned = Physics(pairs=world.pairs)
        jobs = workload(JobRow(0, 5000, model="a"), JobRow(100, 4000, model="c"))
        outcome = simulate(jobs, cluster(1), policy, physics=learned, validate=True)
        assert outcome.preemptions.sum() == 1
        left = simulate(jobs, cluster(1), policy, {"part": False}, physics=learned, validate=True)
        assert left.preemptions.sum() == 0
        assert outcome.jct_s.mean() < left.jct_s.mean()
        assert outcome.makespan_s < left.makespan_s

    @pytest.mark.parametrize("policy", SHARING)
    def test_a_loss_that_is_known_is_not_made(self, world: Physics, policy: str) -> None:
        jobs = workload(JobRow(0, 5000, model="a"), JobRow(100, 4000, model="c"))
        outcome = simulate(jobs, cluster(1), policy, physics=world, validate=True)
        assert not outcome.shared.any()


@pytest.mark.parametrize(("duty_cycles", "shares"), [((0.1, 0.2), True), ((1.0, 1.0), False), ((), False)])
def test_pairs_never_seen_are_judged_by_the_duty_cycles_that_profiles_told(
    world: Physics, duty_cycles: tuple[float, ...], shares: bool
) -> None:
    """Two that keep a device busy, or of which nothing is known (1.5), gain nothing if they are alike."""
    jobs = replace(
        workload(JobRow(0, 1000, load_s=0, model="a"), JobRow(0, 1000, load_s=0, model="b")),
        duty_cycles=duty_cycles,
    )
    outcome = simulate(jobs, cluster(1), "castor", physics=Physics(pairs=world.pairs), validate=True)
    assert outcome.shared.all() == shares
    assert outcome.shared.any() == shares


@pytest.mark.parametrize("policy", SHARING)
def test_a_whole_workload_ends_under_each(world: Physics, policy: str) -> None:
    rows = sixty_rows()
    learned = Physics(pairs=world.pairs)
    outcome = simulate(workload(*rows), cluster(2, 4), policy, physics=learned, validate=True)
    assert outcome.finished.all()
    assert outcome.shared.any()
    benefit = summarise(outcome)["sharing_benefit"]
    assert benefit is not None
    assert 0 < benefit["jobs"] <= int(outcome.shared.sum())
    again = simulate(workload(*rows), cluster(2, 4), policy, physics=learned)
    assert np.array_equal(outcome.jct_s, again.jct_s)


class TestLoadsThatAreFelt:
    """Where a slot is a core: a load of 30 s is a load of 30 s of that core."""

    def test_a_load_and_its_neighbour_slow_each_other(self, world: Physics) -> None:
        felt = replace(world, load_duty=1.0)
        jobs = replace(
            workload(JobRow(0, 1000, load_s=0, model="a"), JobRow(100, 100, load_s=30, model="b")),
            duty_cycles=(0.5, 0.25),
        )
        outcome = simulate(jobs, cluster(1), "sjf-ffs", physics=felt, validate=True)
        # Until 100 alone, 45 s beside the load at 1.5, then 125 s beside the guest at 1.25, then alone.
        assert outcome.load_s[1] == pytest.approx(30 * 1.5)
        assert outcome.jct_s[1] == pytest.approx(45 + 125)
        assert outcome.jct_s[0] == pytest.approx(100 + 45 + 125 + 1000 - 100 - 30 - 100)

    def test_two_that_load_halve_each_other_until_one_has_loaded(self, world: Physics) -> None:
        jobs = replace(
            workload(JobRow(0, 100, load_s=30, model="a"), JobRow(0, 100, load_s=50, model="b")),
            duty_cycles=(0.5, 0.25),
        )
        outcome = simulate(jobs, cluster(1), "sjf-ffs", physics=replace(world, load_duty=1.0), validate=True)
        # Both are at half until 60; then the second has 20 s of its load left, beside a job busy for half.
        assert outcome.load_s.tolist() == pytest.approx([60.0, 60.0 + 20 * 1.5])

    @pytest.mark.parametrize("policy", [*SHARING, "cotenant"])
    def test_a_whole_workload_ends_under_each_though_hosts_fail(self, world: Physics, policy: str) -> None:
        jobs = replace(workload(*sixty_rows()), duty_cycles=(0.9, 0.3, 0.6))
        outcome = simulate(
            jobs,
            cluster(2, 4),
            policy,
            physics=replace(world, load_duty=0.8),
            failures=Failures(mean_between_s=5_000.0, repair_s=300.0),
            seed=5,
            validate=True,
        )
        assert outcome.finished.all()
        assert outcome.load_s[outcome.shared].max() > 30.0


def test_a_bound_holds_in_the_world_as_agents_hold_it() -> None:
    free = [[2.0, 1.6, 1.0], [1.1, 1.05, 1.0], [1.0, 1.0, 1.0]]
    kept, lost = bound_ratios(free, SharingSettings(max=1.3, hp=True, hp_max=1.1))
    assert lost[0] == [True, True, False, False, False, False], "a bound of its own goes before the cluster's"
    assert not any(lost[2]) and not any(lost[1][:3])
    assert kept[0][1] == 1.3, "its co-tenant waits"
    assert kept[1][0] == pytest.approx(1.1 * (1.6 - 1.0) / (1.3 - 1.0)), "and pays for it"
    assert kept[2][:3] == free[2] and kept[1][1] == 1.05, (
        "where nobody is slowed beyond the bound nothing changes"
    )
    hp = ratio_row(0, hp=True, models=2)
    assert kept[hp][1] == 1.1, "a class has a bound of its own"
    assert kept[1][hp] == pytest.approx(1.1 * 0.6 / 0.1), "before which that of the cluster gives way"
    assert [ratio_row(model, False, 2) for model in (0, 1, -1)] == [0, 1, 2]


@pytest.mark.parametrize("policy", [name for name in SHARING if name != "lucid"])
def test_a_pair_whose_bound_cannot_be_kept_is_parted_within_seconds(world: Physics, policy: str) -> None:
    """Never seen, they are taken for 1.25; beside each other both take four times as long."""
    jobs = replace(
        workload(JobRow(0, 5000, model="a"), JobRow(100, 4000, model="c")), duty_cycles=(0.75, 0.5)
    )
    held = simulate(
        jobs, cluster(1), policy, physics=Physics(pairs=world.pairs, share_max=1.5), validate=True
    )
    assert held.shared.all() and held.preemptions.sum() == 1
    assert (held.run_s - jobs.duration_s).max() == pytest.approx(20.0 * 3 / 4, abs=0.1)


@pytest.mark.parametrize("policy", ["gfs-rise", "gfs-rise:share=sjf-ffs", "cotenant"])
def test_spot_jobs_fill_what_hp_jobs_leave(world: Physics, policy: str) -> None:
    """d costs a nothing; b would cost it a quarter, and to keep the bound would be left too little."""
    (choice,) = policies_named(policy)
    table = Path(world.pairs)
    table.write_text(table.read_text() + "a,1,d,1,1.0,1.2\n")
    jobs = workload(
        JobRow(0, 3000, model="a", hp=True), JobRow(60, 300, model="d"), JobRow(70, 300, model="b")
    )

    def run(physics: Physics) -> RunResult:
        return simulate(jobs, cluster(1), choice.name, choice.parameters, physics=physics, validate=True)

    held = run(replace(world, share_hp=1.05))
    assert held.shared.tolist() == [True, True, False]
    assert held.run_s[0] <= 3000 * 1.05
    if policy.startswith("gfs"):
        assert not run(world).shared[0], "without a bound nobody shares with an hp job"


@pytest.mark.parametrize("policy", SHARING)
def test_no_job_loses_more_than_the_bound_by_sharing(world: Physics, policy: str) -> None:
    jobs = workload(JobRow(0, 1000, model="a"), JobRow(130, 1000, model="b"), JobRow(140, 1000, model="a"))
    for share_max in (1.3, 1.1):
        held = simulate(jobs, cluster(1), policy, physics=replace(world, share_max=share_max), validate=True)
        assert held.run_s.max() <= 1000 * share_max * 1.01, (policy, share_max)
    free = simulate(jobs, cluster(1), "sjf-ffs", physics=world)
    assert free.run_s.max() > 1000 * 1.1


@pytest.mark.parametrize("xi", ["learned", "measured"])
def test_an_hp_job_with_a_bound_has_guests_of_kinds_that_were_never_seen(
    world: Physics, xi: Literal["learned", "measured"]
) -> None:
    """d costs a nothing. What b costs it cannot be held within the bound: the first b is parted from it, and
    no other b joins."""
    table = Path(world.pairs)
    table.write_text(table.read_text() + "a,1,d,1,1.0,1.2\n")
    rows = [JobRow(60 + 400 * n, 300, model=model) for n, model in enumerate("dbbd")]
    jobs = workload(JobRow(0, 3000, model="a", hp=True), *rows)
    physics = replace(world, share_hp=1.05, xi=xi)
    held = simulate(jobs, cluster(1), "cotenant", physics=physics, validate=True)
    assert held.shared.tolist()[1::3] == [True, True]
    assert held.run_s[0] <= 3000 * 1.05 + 25
    assert not held.shared[3] and held.shared[2] == (xi == "learned")
    assert held.preemptions.tolist() == [0, 0, int(xi == "learned"), 0, 0]
