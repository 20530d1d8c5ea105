"""CUDA tried in a child, on a library of ours that fails at the stage that the test wants."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cotenant.controller.wire import decode_json
from cotenant.profiler.driver.cuda_probe import CAUSES, NO_CODE, CudaProbe
from tests.agent.mock_gpus import ONE, TWO, MockGpus


def tried(uuid: str = ONE, *words: str, **env: str) -> CudaProbe:
    """What the child says; its exit status says whether all is well."""
    command = [sys.executable, "-m", "cotenant.profiler.driver.cuda_probe", uuid, *words]
    done = subprocess.run(
        command, capture_output=True, check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": uuid, **env}
    )
    said: CudaProbe = decode_json(done.stdout, CudaProbe)
    assert done.returncode == bool(said.problem), done.stderr
    return said


def contexts(gpus: MockGpus) -> list[str]:
    made = gpus.path.with_name(f"{gpus.path.name}.contexts")
    return made.read_text().splitlines() if made.exists() else []


@pytest.mark.parametrize("code", sorted(CAUSES.keys() - {NO_CODE}))
def test_every_known_code_is_named_with_its_usual_cause(gpus: MockGpus, code: int) -> None:
    gpus.say(f"libcuda init {code}")
    said = tried()
    assert (said.stage, said.code) == ("init", code)
    assert said.problem == f"CUDA does not start here: error {code} ({said.text}) at init: {CAUSES[code]}"


def test_each_stage_is_tried_on_the_one_device_alone(gpus: MockGpus) -> None:
    assert tried() == CudaProbe(uuid=ONE, stage="release")
    assert contexts(gpus) == [f"{ONE} unfenced"], "to fence it is the business of who starts it"
    for stage in ("device", "context", "allocate", "free", "release"):
        gpus.say(f"libcuda {stage} 719 {TWO}")
        assert not tried(ONE).problem
        assert tried(TWO).problem.startswith(
            f"CUDA does not start here: error 719 (another error) at {stage}"
        )
        gpus.unsay("libcuda")
    gpus.say("libcuda context 12345")
    assert "error 12345 () at context: see `dmesg`" in tried().problem
    gpus.say("libcuda context 2")
    assert (tried().code, tried().problem) == (2, ""), "CUDA works, whoever has the memory"


def test_no_context_is_made_beside_others_nor_where_one_process_shuts_out_all_others(gpus: MockGpus) -> None:
    gpus.say("libcuda context 719")
    assert tried(ONE, "--beside") == CudaProbe(uuid=ONE, stage="device")
    gpus.say("libcuda mode 3")
    assert tried(ONE) == CudaProbe(uuid=ONE, stage="device")
    assert contexts(gpus) == []
    gpus.say("libcuda init 802")
    assert tried(ONE, "--beside").code == 802


def test_where_only_nvml_is_there_it_says_so(gpus: MockGpus) -> None:
    said = tried(LD_LIBRARY_PATH="/nonexistent")
    assert (said.stage, said.code) == ("library", NO_CODE)
    assert "libcuda.so.1" in said.problem and "NVML answers, and CUDA programs cannot start" in said.problem
