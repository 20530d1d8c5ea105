"""The manifests for Kubernetes, read without a cluster: the fields that their kinds require, names that must
agree, and commands and settings that are real. No cluster has seen them, as docs/operating.md says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from cotenant.controller.cli.verbs import BY_NAME
from cotenant.controller.system import settings
from cotenant.controller.system.settings import LoadedSettings

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "deploy" / "kubernetes"
REQUIRED = {
    ("v1", "ConfigMap"): ("data",),
    ("v1", "Service"): ("spec.selector", "spec.ports"),
    ("apps/v1", "StatefulSet"): (
        "spec.serviceName",
        "spec.selector.matchLabels",
        "spec.template.spec.containers",
    ),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): ("spec.replicatedJobs",),
    ("kueue.x-k8s.io/v1beta2", "ResourceFlavor"): (),
    ("kueue.x-k8s.io/v1beta2", "ClusterQueue"): ("spec.resourceGroups",),
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"): ("spec.clusterQueue",),
}
"""Kinds -> fields that their schemas require, or that mean nothing when left out."""
IMAGE = "registry.example/cotenant:VERSION"


def manifests() -> list[dict[str, Any]]:
    return [each for path in sorted(FOLDER.glob("*.yaml")) for each in yaml.safe_load_all(path.read_text())]


def the(kind: str) -> dict[str, Any]:
    (found,) = [each for each in manifests() if each["kind"] == kind]
    return found


def agents_job() -> dict[str, Any]:
    (job,) = the("JobSet")["spec"]["replicatedJobs"]
    return dict(job)


class Pod(NamedTuple):
    spec: dict[str, Any]
    settings_file: str
    claims: tuple[str, ...] = ()
    """Volumes that a StatefulSet makes."""


def pods() -> dict[str, Pod]:
    controller = the("StatefulSet")["spec"]
    claims = tuple(each["metadata"]["name"] for each in controller["volumeClaimTemplates"])
    return {
        "controller": Pod(controller["template"]["spec"], "controller.toml", claims),
        "agent": Pod(agents_job()["template"]["spec"]["template"]["spec"], "agent.toml"),
    }


def containers(pod: Pod) -> Iterator[dict[str, Any]]:
    yield from pod.spec["initContainers"]
    yield from pod.spec["containers"]


def loaded(name: str, tmp_path: Path, environ: dict[str, str] | None = None) -> LoadedSettings:
    """As the process in the pod reads it; an unknown key is an error."""
    path = tmp_path / name
    path.write_text(the("ConfigMap")["data"][name])
    return settings.load(files=[path], environ=environ or {})


def at(manifest: Any, field: str) -> Any:
    for name in field.split("."):
        manifest = manifest.get(name) if isinstance(manifest, dict) else None
    return manifest


@pytest.mark.parametrize("manifest", manifests(), ids=lambda each: each["kind"])
def test_a_manifest_has_what_its_kind_requires(manifest: dict[str, Any]) -> None:
    fields = REQUIRED[manifest["apiVersion"], manifest["kind"]]
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", manifest["metadata"]["name"])
    assert [field for field in fields if not at(manifest, field)] == []


def test_there_is_one_controller_and_its_labels_agree() -> None:
    controller = the("StatefulSet")["spec"]
    labels = controller["template"]["metadata"]["labels"]
    assert controller["replicas"] == 1
    assert controller["selector"]["matchLabels"] == labels == the("Service")["spec"]["selector"]
    assert controller["serviceName"] == the("Service")["metadata"]["name"]


@pytest.mark.parametrize("name", pods())
def test_a_pod_is_an_ordinary_one(name: str) -> None:
    """What the restricted standard for pods asks, and nothing of the node's."""
    pod = pods()[name]
    assert not {"hostPID", "hostIPC", "hostNetwork"} & pod.spec.keys()
    assert [volume for volume in pod.spec["volumes"] if "hostPath" in volume] == []
    assert pod.spec["securityContext"]["runAsNonRoot"] is True
    assert pod.spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(pod):
        locked = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert container["securityContext"] == locked
        assert container["image"] == IMAGE


@pytest.mark.parametrize("name", pods())
def test_every_volume_that_is_mounted_is_there(name: str) -> None:
    pod = pods()[name]
    volumes = {volume["name"] for volume in pod.spec["volumes"]} | set(pod.claims)
    assert {mount["name"] for each in containers(pod) for mount in each["volumeMounts"]} == volumes


@pytest.mark.parametrize("name", pods())
def test_a_pod_runs_a_daemon_with_settings_that_exist(name: str, tmp_path: Path) -> None:
    pod = pods()[name]
    (container,) = pod.spec["containers"]
    environ = {each["name"]: each.get("value", "10.0.0.7") for each in container["env"]}
    assert container["command"] == ["cotenant", name] and name in BY_NAME
    assert environ.pop("COTENANT_CONFIG") == f"/etc/cotenant/{pod.settings_file}"
    state = loaded(pod.settings_file, tmp_path, environ).value(f"{name}.state_dir")
    mounted = [each["mountPath"] for each in container["volumeMounts"]]
    assert any(str(state).startswith(path) for path in mounted)


def test_agents_find_the_controller_and_their_keys(tmp_path: Path) -> None:
    agent, controller = loaded("agent.toml", tmp_path), loaded("controller.toml", tmp_path)
    (port,) = the("Service")["spec"]["ports"]
    assert agent.value("agent.controller") == f"tcp://{the('Service')['metadata']['name']}:{port['port']}"
    assert str(controller.value("controller.endpoint")).endswith(f":{port['port']}")
    (key,) = pods()["agent"].spec["initContainers"]
    assert key["command"][-1].endswith(f"{agent.value('agent.keys_dir')}/")
    (init,) = pods()["controller"].spec["initContainers"]
    assert f"{controller.value('controller.keys_dir')}/controller.key" in init["command"][-1]


def test_agents_ask_for_whole_gpus_that_the_quota_holds() -> None:
    job = agents_job()["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert isinstance(gpus, int) and "nvidia.com/gpu" not in container["resources"]["requests"]
    (group,) = the("ClusterQueue")["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    quota = {each["name"]: each["nominalQuota"] for each in flavor["resources"]}
    assert (
        set(quota) == set(group["coveredResources"]) and quota["nvidia.com/gpu"] == gpus * job["parallelism"]
    )
    assert flavor["name"] == the("ResourceFlavor")["metadata"]["name"]


def test_the_queue_of_the_agents_is_there() -> None:
    queue = the("JobSet")["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    assert queue == the("LocalQueue")["metadata"]["name"]
    assert the("LocalQueue")["spec"]["clusterQueue"] == the("ClusterQueue")["metadata"]["name"]


def test_the_page_names_the_hosts_as_jobset_does() -> None:
    page = (FOLDER.parent / "README.md").read_text()
    assert f"{the('JobSet')['metadata']['name']}-{agents_job()['name']}-0-$n" in page


def test_the_pages_say_that_no_cluster_has_seen_them() -> None:
    operating = (FOLDER.parents[2] / "docs" / "operating.md").read_text()
    assert "**Not tried yet.**" in operating.partition("## Kubernetes\n")[2]
    assert "No cluster has seen these manifests" in (FOLDER.parent / "README.md").read_text()
