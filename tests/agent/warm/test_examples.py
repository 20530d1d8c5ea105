"""The examples and the demo's jobs: started warm, each has the parameters that it has cold, bit for bit."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.agent.warm.spawn import ForkServer
from tests.agent.warm.servers import Environment, said
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
TRAINED = Path(__file__).with_name("scripts") / "trained.py"
STEPS = 3
WORKLOADS = ROOT / "examples" / "demo"
EXAMPLES = sorted((ROOT / "examples" / "training").glob("*.py"))
DEMO = sorted(path for path in WORKLOADS.glob("*.py") if "__main__" in path.read_text())
NEEDS_SKLEARN = {path.stem for path in (*EXAMPLES, *DEMO)} - {"language_model"}
PROGRAMS = [
    (str(path), *(("--batch-size", "8") if path in DEMO else ()))
    for path in (*EXAMPLES, *DEMO)
    if path.stem not in NEEDS_SKLEARN or importlib.util.find_spec("sklearn") is not None
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("examples"))


@pytest.fixture(scope="module")
def server(environment: Environment) -> Iterator[ForkServer]:
    names = ("torch", "torch._dynamo", "torch.distributed", "numpy", "sklearn.datasets")
    with environment.server(*names) as server:
        word = said(server)
        assert word.m == "ready", word
        yield server


def test_all_are_here() -> None:
    assert {path.stem for path in EXAMPLES} == {"train", "train_cotenant"}
    assert {path.stem for path in DEMO} == {
        "compute_bound", "language_model", "loader_bound", "memory_heavy"
    }  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 3])
def test_parameters_are_equal_bit_for_bit(
    environment: Environment, server: ForkServer, tmp_path: Path, ranks: int
) -> None:
    """A gang of two is in `test_torch.py`; of three on, the order in which gradients are added matters. Each
    is forked by itself. Cold, one process per rank runs them all in turn: an import of torch for each would
    take minutes."""
    words = [(",", str(free_port()), *program) for program in PROGRAMS]
    command = (sys.executable, str(TRAINED), str(STEPS))
    cold = environment.cold((*command, *(word for each in words for word in each)), tmp_path, ranks)
    assert cold.codes == dict.fromkeys(range(ranks), 0), cold.outputs
    warm: dict[int, list[str]] = {rank: [] for rank in range(ranks)}
    for each in words:
        ended = environment.warm(server, (*command, *each), tmp_path, ranks)
        assert ended.codes == dict.fromkeys(range(ranks), 0), ended.outputs
        for rank, output in ended.outputs.items():
            warm[rank] += hashes_in(output)
    assert warm == {rank: hashes_in(output) for rank, output in cold.outputs.items()}
    assert [len(each) for each in warm.values()] == [len(PROGRAMS)] * ranks


def hashes_in(output: str) -> list[str]:
    """The lines of `trained.py` among what the scripts said."""
    return [line for line in output.splitlines() if len(line.rpartition(" ")[2]) == 64]
