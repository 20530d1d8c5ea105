"""The study of one GPU: its verdicts, its page, and the kit's limits."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))


from experiments.gpu_study import bounds, claims, kit, queues
from experiments.gpu_study.page import REHEARSAL, write_page
from experiments.gpu_study.study import SLICES
from experiments.shared.live.beside import Beside, Step, Stretch
from hwtests.jobs import JOBS
from hwtests.slices import Outcome

ROOT = Path(__file__).resolve().parents[2]
BY_TITLE = {claim.title: claim for claim in claims.CLAIMS}
NAMES = [each.name for each in SLICES]
NONE: Mapping[str, str] = {}
CUDA = {"device": "cuda", "GPUs": "one", "driver": "1", "torch": "2", "commit": "abc"}


def done(name: str, units: Mapping[str, Any]) -> Outcome:
    return Outcome(name=name, state="done", units=dict(units))


def found(**units: Mapping[str, Any]) -> dict[str, Outcome]:
    """Slices that are done, their names with `_` for what is no letter."""
    names = {name.replace("-", "_").replace(".", "_"): name for name in NAMES}
    return {names[key]: done(names[key], each) for key, each in units.items()}


def pairs(*speeds: float) -> dict[str, Any]:
    return {f"a+{number}": {"speed": speed} for number, speed in enumerate(speeds)}


def bounded(p50: float, guest: float = 1.0) -> dict[str, Any]:
    return {"a:b": {"p50": p50, "mean": p50, "p99": 2.0, "guest_steps_per_s": guest}}


def suite(passed: int = 1, failures: Mapping[str, str] = NONE, **measured: str) -> dict[str, Any]:
    return {
        "passed": passed, "failed": len(failures), "skipped": 0, "failures": failures, "skips": {},
        "measured": {name.replace("_", " "): text for name, text in measured.items()},
    }  # fmt: skip


def queue(jct_s: float) -> dict[str, Any]:
    return {"run": {"jct_mean_s": jct_s, "jobs": 40}}


ONES = (1.0,) * 6
NOT_ABOVE = "cotenant's mean completion time is not above"
VERDICTS: tuple[tuple[str, dict[str, Outcome], str], ...] = (
    ("Pairs run", found(pairs_mps=pairs(*(1.2,) * 4, 0.9, 0.9), pairs_slices=pairs(*ONES)), "held"),
    ("Pairs run", found(pairs_mps=pairs(*(1.2,) * 3, *(0.9,) * 3), pairs_slices=pairs(*ONES)), "refuted"),
    ("Pairs run", found(pairs_mps=pairs(*ONES)), "not measured"),
    ("Pairs run", found(pairs_mps=pairs(1.2, 1.2), pairs_slices=pairs(1.0, 1.0)), "not measured"),
    ("Sharing a GPU", found(pairs_mps=pairs(1.2, 1.1, 0.8)), "held"),
    ("Sharing a GPU", found(pairs_mps=pairs(1.2, 0.9, 0.8)), "refuted"),
    ("A job with a bound of 1.10", found(bound_1_10=bounded(1.10)), "held"),
    ("A job with a bound of 1.10", found(bound_1_10=bounded(1.101)), "refuted"),
    ("A job with a bound of 1.05", found(bound_1_05=bounded(1.06)), "refuted"),
    ("A job with a bound of 1.05", {}, "not measured"),
    ("The guest", found(bound_1_10=bounded(1.0), bound_none=bounded(2.0)), "held"),
    ("The guest", found(bound_1_10=bounded(1.0, 0.0), bound_none=bounded(2.0)), "refuted"),
    ("A warm start", found(warm_start={"tests": suite(cold_start="4.1 s", warm_start="1.2 s")}), "held"),
    ("A warm start", found(warm_start={"tests": suite(cold_start="1 s", warm_start="1 s")}), "refuted"),
    ("A warm start", found(warm_start={"tests": suite(0, {"t": "no"}, cold_start="4 s", warm_start="1 s")}),
     "refuted"),
    ("A warm start", found(warm_start={"tests": suite(0, {"t": "no job started warm"})}), "not measured"),
    ("A preempted job", found(resume={"resume": suite(4)}), "held"),
    ("A preempted job", found(resume={"resume": suite(3, {"t": "differ"})}), "refuted"),
    ("A preempted job", found(resume={"resume": suite(0)}), "not measured"),
    ("The hardware suite", found(numbers={"a": suite()}), "not measured"),
    ("The hardware suite", {n: done(n, {"a": suite()}) for n in claims.HARDWARE}, "held"),
    ("The hardware suite", found(mps={"a": suite(9, {"t": "no"})}), "refuted"),
    ("Castor's", found(queue_castor=queue(90.0), queue_fifo=queue(100.0)), "held"),
    ("Castor's", found(queue_castor=queue(101.0), queue_fifo=queue(100.0)), "refuted"),
    (NOT_ABOVE, found(queue_cotenant=queue(112.0), queue_castor=queue(100.0)), "held"),
    (NOT_ABOVE, found(queue_cotenant=queue(114.0), queue_castor=queue(100.0)), "refuted"),
    ("cotenant's mean completion time is below", found(queue_cotenant=queue(1.0)), "not measured"),
)  # fmt: skip


@pytest.mark.parametrize(("title", "outcomes", "verdict"), VERDICTS)
def test_a_claim_is_held_refuted_or_not_measured(
    title: str, outcomes: dict[str, Outcome], verdict: str
) -> None:
    (claim,) = (each for each in claims.CLAIMS if each.title.startswith(title))
    assert claim.judge(outcomes).verdict == verdict


def test_the_preregistration_has_every_claim_word_for_word() -> None:
    text = (ROOT / "experiments" / "gpu_study" / "preregistration.md").read_text()
    assert "2026-11-27" in text and "No GPU has been seen" in text
    for claim in claims.CLAIMS:
        (row,) = (line for line in text.splitlines() if line.startswith(f"| {claim.title} |"))
        assert row.endswith(f"| {claim.figure} | {claim.refuted} |"), claim.title


def test_the_page_says_first_whether_a_gpu_was_there() -> None:
    on_cpu = write_page({}, NAMES, {"device": "cpu"})
    assert on_cpu.split("\n\n")[1] == REHEARSAL
    whole = {name: Outcome(name=name, state="done") for name in NAMES}
    assert "Every slice is over." in write_page(whole, NAMES, CUDA)
    assert "Incomplete: mps, solos, " in write_page({}, NAMES, CUDA)
    assert "rehearsal in short slices" in write_page(whole, NAMES, CUDA, is_short=True)


def test_the_page_puts_the_figure_beside_what_was_measured() -> None:
    text = write_page(found(bound_1_10=bounded(1.2)), NAMES, CUDA)
    claim = BY_TITLE["A job with a bound of 1.10 keeps it."]
    (row,) = (line for line in text.splitlines() if line.startswith(f"| {claim.title}"))
    assert claim.figure in row and "a:b 1.200" in row and row.endswith("| **refuted** |")
    assert text.count("**not measured**") == len(claims.CLAIMS) - 1


def test_steps_are_compared_within_their_stretches() -> None:
    mine = [Step(at_s, 0.0) for at_s in (0.0, 1.0, 2.0, 3.0, 10.0, 12.0, 14.0)]
    guest = [Step(at_s, 0.0) for at_s in (9.0, 10.0, 12.0)]
    run = Beside(mine, guest, Stretch(0.0, 3.0), Stretch(10.0, 14.0), None)
    seen = bounds.compare(run)
    assert (seen["alone_step_s"], seen["p50"], seen["guest_steps_per_s"]) == (1.0, 2.0, 0.5)
    with pytest.raises(ValueError, match="too few steps: 0 alone"):
        bounds.compare(run._replace(alone=Stretch(5.0, 6.0)))


def test_the_queue_has_forty_jobs_that_train_for_what_is_left_after_loads() -> None:
    solos: Any = dict.fromkeys((job.name for job in JOBS), None)
    drawn = queues.draw_queue(solos, queues.JOBS_IN_QUEUE)
    planned = queues.stretch(drawn, 160.0, queues.SERVICE_S)
    assert len(planned) == 40 and {each.kind for each in planned} == set(solos)
    assert sum(each.length_s for each in planned) == pytest.approx(160.0, abs=1.0)
    assert planned[-1].at_s == pytest.approx(queues.SERVICE_S / queues.LOAD)


def test_a_kit_over_its_limit_names_its_largest_files(tmp_path: Path) -> None:
    (tmp_path / "large.whl").write_bytes(b"x" * kit.MIB)
    (tmp_path / "small.whl").write_bytes(b"x" * 1000)
    assert kit.check_size(tmp_path) == pytest.approx(1.0, abs=0.01)
    with pytest.raises(kit.TooLarge, match=r"1.0 MiB, and may have 0.5: large.whl 1.0, small.whl 0.0"):
        kit.check_size(tmp_path, limit_mib=0.5)


def test_the_kit_carries_what_the_study_runs_and_no_large_library() -> None:
    tree = kit.list_tree()
    for name in ("study.py", "preregistration.md", "run.sh"):
        assert f"experiments/gpu_study/{name}" in tree
    assert "experiments/shared/live/training.py" in tree
    assert "hwtests/conftest.py" in tree and not any("shared/traces" in name for name in tree)
    pins = kit.read_pins((ROOT / "requirements-dev.txt").read_text())
    wanted = kit.list_requirements((ROOT / "pyproject.toml").read_text(), pins)
    names = {each.partition("==")[0] for each in wanted}
    assert {"click", "numpy", "pyzmq", "pytest"} <= names and not names & kit.LEFT_OUT
    with pytest.raises(KeyError):
        kit.list_requirements('[project]\ndependencies = ["unpinned>=1"]', pins)
