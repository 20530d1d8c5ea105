"""Policies from other packages and modules: found, made, simulated; and what is said where that cannot be."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cotenant.controller.api import policies_offered
from cotenant.controller.domain import JobId, PolicySettings
from cotenant.controller.engine import Engine, EngineConfig
from cotenant.controller.policies import plugins, registry
from cotenant.controller.policies.registry import MissingPolicy, make_or_stand_in
from cotenant.controller.sim import BadChoice, Scenario, policies_named, simulate, tasks
from tests.controller.building import Desk, report

SOURCE = '''
from cotenant.controller.planning.plan import Plan
from cotenant.controller.planning import why_waiting
from cotenant.controller.policies.base import Stateless
from cotenant.controller.policies.toolkit import place_in_order


class Widest(Stateless):
    """Widest first.

    And more."""

    name = "widest"

    def __init__(self, *, narrow: bool = False, scale: float = 1.0) -> None:
        if scale <= 0.0:
            raise ValueError(f"scale must be above 0, got {scale:g}")
        self._sign = scale if narrow else -scale

    def queue_key(self, job):
        return (self._sign * job.spec.gpus,)

    def decide(self, view, event):
        plan = Plan(view)
        place_in_order(plan, self.name, strict=True)
        return plan.decision()

    def explain(self, view, job):
        return why_waiting(view, job, self.name)


class Half:
    name = "half"

    def decide(self, view, event): ...


class Demanding(Widest):
    def __init__(self, wanted): ...


a_number = 3
'''
Package = Callable[..., None]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """Installs a package with one module, and entry points as told."""

    def install(source: str = SOURCE, **points: str) -> None:
        (tmp_path / "own_policies.py").write_text(source)
        info = tmp_path / "own_policies-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-policies\nVersion: 1.0\n")
        lines = [f"{name.replace('_', '-')} = {value}" for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[cotenant.policies]", *lines, ""]))
        monkeypatch.syspath_prepend(str(tmp_path))
        forget()

    yield install
    sys.modules.pop("own_policies", None)
    monkeypatch.undo()
    forget()


def forget() -> None:
    plugins.find_entry_points.cache_clear()
    plugins.find.cache_clear()


def test_an_installed_policy_is_listed_with_its_first_line_and_its_defaults(package: Package) -> None:
    package(widest="own_policies:Widest")
    assert registry.available()["widest"] == "Widest first"
    assert registry.defaults("widest") == {"narrow": False, "scale": 1.0, "placement": "best-fit"}
    assert "widest" not in registry.ours_available()
    assert registry.make("widest", {"scale": 2}).name == "widest"


def test_what_is_offered_is_not_imported_by_knowing_of_it(package: Package) -> None:
    package("raise RuntimeError('imported')", widest="own_policies:Widest")
    assert "widest" in plugins.find_entry_points()
    assert "own_policies" not in sys.modules


def test_a_controller_under_fifo_loads_neither_a_paper_nor_numpy() -> None:
    code = (
        "import sys, cotenant.controller.server; from cotenant.controller.policies import registry\n"
        "registry.make('fifo', {})\n"
        "loaded = [name for name in sys.modules if name.startswith('cotenant.controller.papers')]\n"
        "assert not loaded and 'numpy' not in sys.modules, loaded\n"
        "registry.make('yarn-cs', {})\n"
        "assert 'cotenant.controller.papers.literature.two_class' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_one_that_cannot_be_imported_is_listed_with_where_and_why(package: Package) -> None:
    package("import json\nraise RuntimeError('no licence')\n", widest="own_policies:Widest")
    why = registry.unavailable()["widest"]
    assert "own_policies.py:2: RuntimeError: no licence" in why
    with pytest.raises(BadChoice) as refused:
        policies_named("fifo,widest")
    assert refused.value.hint == why


def test_a_name_of_ours_stays_ours(package: Package) -> None:
    package(fifo="own_policies:Widest")
    assert registry.available()["fifo"] == registry.ours_available()["fifo"]
    assert type(registry.make("fifo", {})).__module__.startswith("cotenant.")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("own_policies:Nope", "own_policies has no Nope; it has Demanding, Half, Widest"),
        ("own_policies:a_number", "is not a class or a function"),
        ("own_policies:Half", "lacks queue_key, observe, explain, save, load"),
        ("own_policies:Demanding", "its parameter wanted needs a default"),
        ("not_there:Widest", "no module not_there; install its package, or put its folder on PYTHONPATH"),
        ("own_policies:Widest:scale=0", "scale must be above 0, got 0"),
    ],
)
def test_what_is_wrong_with_a_policy_is_said_before_anything_runs(
    package: Package, text: str, said: str
) -> None:
    package()
    with pytest.raises(BadChoice) as refused:
        policies_named(text)
    assert said in f"{refused.value}: {refused.value.hint}"


def test_a_syntax_error_is_told_with_its_line(package: Package) -> None:
    package("class Widest(:\n")
    with pytest.raises(ValueError, match=r"own_policies\.py:1: "):
        plugins.find("own_policies:Widest")


def test_a_path_and_its_parameters_are_read_from_one_list(package: Package) -> None:
    package()
    found = policies_named("fifo,own_policies:Widest:narrow=true,scale=2,srtf,own_policies:Widest")
    assert [choice.label for choice in found] == [
        "fifo",
        "own_policies:Widest:narrow=true,scale=2",
        "srtf",
        "own_policies:Widest",
    ]
    assert policies_named(found[1].label) == (found[1],)


def test_it_is_simulated_as_ours_are(package: Package) -> None:
    package(widest="own_policies:Widest")
    scenario = Scenario(trace="philly/0e4a51", jobs=200, hosts=1, load_scale=4.0)
    widest, narrow, fifo = tasks(scenario, policies_named("widest,widest:narrow=true,fifo"), [0])
    means = []
    for task in (widest, narrow, fifo):
        chosen = task.policy
        outcome = simulate(task.workload, task.cluster, chosen.name, chosen.parameters, physics=task.physics)
        assert outcome.finished.all()
        means.append(float(outcome.jct_s.mean()))
    assert len(set(means)) == 3


def test_a_message_cannot_make_the_controller_import_a_module_but_its_configuration_can(
    package: Package,
) -> None:
    package()
    assert "own_policies:Widest" not in policies_offered(Engine(registry.make))
    named = EngineConfig(policy=PolicySettings(name="own_policies:Widest"))
    assert "own_policies:Widest" in policies_offered(Engine(registry.make, named))


def test_a_policy_that_is_gone_starts_nothing_and_says_so_and_keeps_its_state() -> None:
    desk = Desk("widest", report("a", 1), make=make_or_stand_in)
    desk.submit(1)
    assert desk.phase(1) == "queued"
    gone = "nothing starts under policy widest, which this controller no longer has: no policy"
    assert gone in "; ".join(str(reason) for reason in desk.engine.explain(JobId("1"), 0.0))
    absent = make_or_stand_in("widest", {})
    assert isinstance(absent, MissingPolicy)
    absent.load(b"what it knew")
    assert absent.save() == b"what it knew"


def test_the_policy_that_the_page_shows_runs_from_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "writing-a-policy.md"
    (source,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    (tmp_path / "widest.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    (choice,) = policies_named("widest:Widest:gpus_max=4")
    (task,) = tasks(Scenario(trace="philly/0e4a51", jobs=60, hosts=2), (choice,), [0])
    outcome = simulate(task.workload, task.cluster, choice.name, choice.parameters, physics=task.physics)
    assert outcome.finished.all()
    sys.modules.pop("widest", None)
