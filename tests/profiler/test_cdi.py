"""Whether podman finds each GPU by its UUID in the host's CDI specifications."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cotenant.profiler.driver.cdi import NO_NAMES, why_no_names

UUIDS = ("GPU-11111111-0000-0000-0000-000000000000", "MIG-22222222-0000-0000-0000-000000000000")


def named(*names: str, kind: str = "nvidia.com/gpu") -> dict[str, Any]:
    edits = {"deviceNodes": [{"path": "/dev/nvidia0"}]}
    devices = [{"name": name, "containerEdits": edits} for name in names]
    return {"cdiVersion": "0.5.0", "kind": kind, "devices": devices, "containerEdits": {"mounts": None}}


YAML = f"""\
---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: 0
  containerEdits: {{deviceNodes: [{{path: /dev/nvidia0}}]}}
- {{name: {UUIDS[0]}}}
- name: "{UUIDS[1]}"
"""
OTHERS = {"etc/cdi/nvidia.txt": YAML, "etc/cdi/x.yaml": "a: [", "etc/cdi/y.json": "3"}


@pytest.mark.parametrize(
    ("files", "complete"),
    [
        pytest.param({"etc/cdi/nvidia.yaml": YAML}, True, id="YAML"),
        pytest.param({"etc/cdi/gpus.json": named(*UUIDS, "0", "all"), **OTHERS}, True, id="JSON"),
        pytest.param({"etc/cdi/a.json": named(UUIDS[0]), "etc/cdi/b.json": named(UUIDS[1])}, True, id="two"),
        pytest.param({"etc/cdi/nvidia.yaml": named("0", "all")}, False, id="indices"),
        pytest.param({"etc/cdi/nvidia.yaml": named(UUIDS[0])}, False, id="not all"),
        pytest.param({"etc/cdi/nvidia.yaml": named(*UUIDS, kind="a.com/gpu")}, False, id="of another kind"),
        pytest.param({"var/run/cdi/nvidia.yaml": YAML}, False, id="where newer podmans do not look"),
        pytest.param(OTHERS, False, id="no specification"),
    ],
)
def test_a_host_offers_gpus_to_images_where_all_are_named(
    files: dict[str, Any], complete: bool, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    assert why_no_names(UUIDS, tmp_path) == ("" if complete else NO_NAMES)
    assert why_no_names((), tmp_path) == "", "without GPUs there is nothing to name"


def test_what_users_cannot_read_names_nothing(tmp_path: Path) -> None:
    file = tmp_path / "etc/cdi/nvidia.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(YAML)
    file.chmod(0o600)
    assert why_no_names(UUIDS, tmp_path) == NO_NAMES
