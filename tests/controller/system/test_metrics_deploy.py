"""What is shipped for Prometheus and Grafana, held against what cotenant really shows.

Rule: a name in a panel, a rule or the documentation exists in the table, and what is in the table is asked
for somewhere. What only promtool can judge is judged by promtool, where there is one.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cotenant.controller.cli.verbs import BY_NAME
from cotenant.controller.domain import Phase
from cotenant.controller.system.metrics.address import parse
from cotenant.controller.system.metrics.table import AGENT, CONTROLLER, RATES, SHARES, Metric
from tests.building.limits import within_s

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "examples" / "deploy"
DASHBOARD = DEPLOY / "grafana" / "cotenant.json"
PROMETHEUS = DEPLOY / "prometheus"
RULES = (PROMETHEUS / "cotenant-recording.yml", PROMETHEUS / "cotenant-alerts.yml")
STORIES = PROMETHEUS / "cotenant-alerts.test.yml"
PAGE = PROMETHEUS / "README.md"
OPERATING = ROOT / "docs" / "operating.md"
EVERYTHING: Final = (*CONTROLLER, *AGENT)
PROMETHEUS_OWN: Final = {"job", "instance", "alertname", "alertstate", "severity", "trouble"}
"""Labels that are not ours: Prometheus's, and one that a panel makes up."""


def series_of(metric: Metric) -> set[str]:
    if metric.kind != "histogram":
        return {metric.name}
    return {f"{metric.name}_{part}" for part in ("bucket", "sum", "count")}


SERIES: Final = {series: metric for metric in EVERYTHING for series in series_of(metric)}


@cache
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


@cache
def rules() -> list[dict[str, Any]]:
    return [
        rule
        for path in RULES
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def queries() -> Iterator[tuple[str, str]]:
    """Where it stands, and what it asks."""
    for panel in panels():
        for target in panel["targets"]:
            yield f"panel {panel['title']}", target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["definition"]
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]


def names_in(query: str) -> set[str]:
    """Our metrics in it; a recording rule's name has a colon."""
    return set(re.findall(r"[\w:]*cotenant[\w:]*", re.sub(r'"[^"]*"', '""', query)))


@pytest.mark.parametrize(("where", "query"), [pytest.param(*each, id=each[0]) for each in queries()])
def test_every_query_asks_for_metrics_labels_and_values_that_exist(where: str, query: str) -> None:
    plain = {name for name in names_in(query) if ":" not in name}
    assert plain <= set(SERIES), f"{where} asks for what cotenant does not show"
    assert names_in(query) - plain <= recorded(), f"{where} asks for what no rule records"
    assert plain or ":" in query or "ALERTS" in query or 'job="cotenant-' in query or "process_" in query, (
        where
    )
    known = set().union(*(SERIES[name].labels for name in plain), PROMETHEUS_OWN, {"le"})
    used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query))
    for words in re.findall(r"\b(?:by|without|on)\s*\(([^)]*)\)", query):
        used |= {word.strip() for word in words.split(",")}
    if plain:
        assert used <= known | {"use"}, (where, used - known)
    for selected in re.findall(r'indicator="(\w+)"', query):
        assert selected in (*SHARES, *RATES), where


@pytest.mark.parametrize("metric", EVERYTHING, ids=lambda metric: str(metric.name))
def test_every_metric_is_documented_and_asked_for(metric: Metric) -> None:
    assert f"| `{metric.name}` |" in PAGE.read_text()
    asked = {name for _, query in queries() for name in names_in(query)}
    assert asked & series_of(metric), f"nothing that is shipped asks for {metric.name}"


def test_the_documentation_names_nothing_that_does_not_exist() -> None:
    texts = [PAGE.read_text(), OPERATING.read_text(), (DEPLOY / "README.md").read_text(), STORIES.read_text()]
    for text in texts:
        found = set(re.findall(r"(?<![\w:/.-])cotenant_\w+", text))
        assert found <= set(SERIES) | {metric.name for metric in EVERYTHING}


# --- The dashboard ----------------------------------------------------------------------------------


def test_every_panel_has_a_title_a_question_and_a_unit() -> None:
    titles = [panel["title"] for panel in panels()]
    assert len(set(titles)) == len(titles)
    for panel in panels():
        assert "?" in panel["description"], f"{panel['title']}: which question does it answer?"
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == panel["datasource"]["uid"] == "${datasource}", panel[
                "title"
            ]
        if panel["type"] == "timeseries" and len(panel["targets"]) > 1:
            assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


def test_legends_name_labels_that_their_query_keeps() -> None:
    for panel in panels():
        for target in panel["targets"]:
            kept = re.search(r"\bby \(([^)]*)\)", target["expr"])
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                names = names_in(target["expr"])
                known = set().union(*(SERIES[name].labels for name in names), {"instance"})
                by = {word.strip() for word in kept.group(1).split(",")} if kept else known
                assert label in by & known, (panel["title"], label)


def test_panels_stand_in_a_grid_without_holes_or_overlaps() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_its_variables_are_a_datasource_and_hosts() -> None:
    found = dashboard()
    variables = {each["name"]: each for each in found["templating"]["list"]}
    assert (
        variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    )
    assert variables["host"]["multi"] and variables["host"]["includeAll"]
    used = set(re.findall(r"\$(\w+)|\${(\w+)}", json.dumps(found["panels"])))
    names = {one or two for one, two in used} - {"__rate_interval", "1"}
    assert names == set(variables)
    assert found["schemaVersion"] >= 39, "older ones are changed at import"


# --- The rules --------------------------------------------------------------------------------------


def test_every_alert_says_how_grave_it_is_and_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        assert rule["annotations"]["summary"] and len(rule["annotations"]["description"]) > 40, rule["alert"]


def test_every_alert_is_in_a_story() -> None:
    stories = yaml.safe_load(STORIES.read_text())["tests"]
    told = json.dumps(stories)
    assert {rule["alert"] for rule in rules() if "alert" in rule} <= set(re.findall(r"Cotenant\w+", told))


def test_every_verb_that_an_alert_names_exists() -> None:
    texts = [text for rule in rules() for text in rule.get("annotations", {}).values()]
    words = {word for text in texts for word in re.findall(r"\bcotenant (\w+)", text)}
    assert words >= {"nodes", "explain", "queue"}, "alerts name no verb"
    assert words <= set(BY_NAME)


def test_the_example_configuration_loads_the_rules_and_names_the_jobs_that_alerts_look_for() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    assert [PROMETHEUS / name for name in config["rule_files"]] == list(RULES)
    jobs = {each["job_name"] for each in config["scrape_configs"]}
    looked_for = {name for rule in rules() for name in re.findall(r'job="([\w-]+)"', rule["expr"])}
    assert looked_for == jobs
    for job in config["scrape_configs"]:
        for target in job["static_configs"][0]["targets"]:
            assert parse(target, "metrics.agent_listen").port in (9741, 9742)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (of Prometheus) is not installed")
@pytest.mark.parametrize(
    "words",
    [("check", "config", "prometheus.yml"), ("test", "rules", STORIES.name)],
    ids=["the configuration with its rules", "the stories of the alerts"],
)
def test_promtool_agrees(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *words], cwd=PROMETHEUS, capture_output=True, text=True, timeout=within_s(120)
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- Every panel, asked of a cluster in which everything happens --------------------------------------

VALUES_OF: Final = {
    "state": ("ok", "suspect", "draining", "lost", "silent"),
    "phase": [phase.value for phase in Phase],
    "use": ("free", "alone", "shared", "out"),
    "kind": ("cuda", "internal_errors"),
    "indicator": (*SHARES, *RATES),
    "outcome": ("finished", "infra-failed"),
}
DOWN: Final = ("cotenant_device_mps_up", "cotenant_device_healthy")
"""What is wrong when it is 0."""


def history() -> Iterator[dict[str, str]]:
    """An hour of every series there is, counters rising and gauges at 1, as promtool reads it."""
    for metric in EVERYTHING:
        by = [VALUES_OF.get(label, ("x",)) for label in metric.labels]
        is_agents = metric in AGENT
        for chosen in itertools.product(*by):
            labels = {
                **dict(zip(metric.labels, chosen, strict=True)),
                "instance": "i",
                "job": "cotenant-controller",
            }
            if is_agents:
                labels |= {"instance": "gpu01:9742", "job": "cotenant-agents"}
            for name in sorted(series_of(metric)):
                for le in ("1.0", "+Inf") if name.endswith("_bucket") else ("",):
                    shown = labels | ({"le": le} if le else {})
                    words = ",".join(f'{label}="{value}"' for label, value in shown.items())
                    rises = metric.kind != "gauge"
                    values = "0+1x60" if rises else "0x60" if name in DOWN else "1x60"
                    yield {"series": f"{name}{{{words}}}", "values": values}
    for job, instance in (("cotenant-controller", "i"), ("cotenant-agents", "gpu01:9742")):
        for name in ("process_cpu_seconds_total", "process_resident_memory_bytes"):
            yield {"series": f'{name}{{job="{job}",instance="{instance}"}}', "values": "1+1x60"}
    yield {
        "series": 'ALERTS{alertname="CotenantMpsDown",alertstate="firing",severity="warning"}',
        "values": "1x60",
    }


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (of Prometheus) is not installed")
def test_every_panel_shows_something_where_there_is_something(tmp_path: Path) -> None:
    asked = [
        target["expr"].replace("$__rate_interval", "5m").replace("$host", ".*")
        for panel in panels()
        for target in panel["targets"]
    ]
    story = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": list(history()),
                "promql_expr_test": [
                    {
                        "expr": f"count({query}) > bool 0",
                        "eval_time": "59m",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    }
                    for query in asked
                ],
            }
        ],
    }
    file = tmp_path / "panels.test.yml"
    file.write_text(json.dumps(story))
    words = ["promtool", "test", "rules", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=within_s(120))
    assert done.returncode == 0, done.stdout + done.stderr
