"""Training that was started warm ends with the same parameters, bit for bit, as cold: alone and as a gang,
from `python` and from torchrun.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.agent.warm.spawn import ForkServer
from tests.agent.warm.servers import Environment, said
from tests.checkpoint.ranks import Supervisor
from tests.ports import free_port

TRAIN = """
import hashlib, os, sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(int(sys.argv[1]))
dist.init_process_group("gloo")
rank = dist.get_rank()
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(), torch.nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters())
for x, y in DataLoader(data, batch_size=16, shuffle=True, num_workers=int(sys.argv[2])):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
os.write(1, f"{rank} {digest} {torch.get_num_threads()} {cache}\\n".encode())
time.sleep(0.1)  # As `checkpoint/talk/gang.py` does: gloo may abort a process that ends right behind a step.
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("torch")
    return Environment(folder, PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")


@pytest.fixture(scope="module")
def server(environment: Environment) -> Iterator[ForkServer]:
    with environment.server("torch", "torch.distributed.run", "torch._dynamo", "numpy") as server:
        word = said(server)
        assert word.m == "ready", word
        yield server


def test_parameters_are_equal_bit_for_bit(
    environment: Environment, server: ForkServer, tmp_path: Path
) -> None:
    """A gang whose loaders are processes; gangs of other sizes are in `test_examples.py`."""
    ranks = 2
    (tmp_path / "train.py").write_text(TRAIN)
    argv = (sys.executable, "train.py", "7", "2")
    warm = environment.warm(server, argv, tmp_path, ranks, free_port())
    assert warm.codes == dict.fromkeys(range(ranks), 0), warm.outputs
    assert warm == environment.cold(argv, tmp_path, ranks, free_port())


def test_ranks_that_seed_nothing_differ(environment: Environment, server: ForkServer, tmp_path: Path) -> None:
    """The generators that an import seeds are seeded anew: else every job of a server would draw the same."""
    (tmp_path / "draw.py").write_text(
        "import numpy, torch\nprint(numpy.random.rand(), torch.rand(1).item(), torch.initial_seed())\n"
    )
    ended = environment.warm(server, (sys.executable, "draw.py"), tmp_path, 2)
    assert ended.codes == {0: 0, 1: 0}, ended
    assert not set(ended.outputs[0].split()) & set(ended.outputs[1].split())


has_torchrun = pytest.mark.skipif(
    not Path(sys.executable).with_name("torchrun").exists(),
    reason="this environment borrows torch, without torchrun",
)


MODULE = (sys.executable, "-m", "torch.distributed.run")
TELL = """
import os, sys
group = os.environ.get("COTENANT_GROUP", "no")
is_there = group in open("/proc/self/cgroup").read()
os.write(1, f"imported {'torch' in sys.modules}\\nin its group {is_there}\\n".encode())
"""
"""A worker tells what it found imported already, and where it is."""


def workers(folder: Path, launcher: tuple[str, ...]) -> tuple[str, ...]:
    (folder / "train.py").write_text(TELL + TRAIN)
    return (*launcher, "--nproc-per-node=2", f"--master-port={free_port()}", "train.py", "7", "0")


def parameters_in(output: str) -> list[str]:
    return sorted(line for line in output.splitlines() if line[:2] in ("0 ", "1 "))


@pytest.fixture(scope="module")
def cold_parameters(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of torchrun, by whichever name: it is the same program."""
    folder = tmp_path_factory.mktemp("cold")
    cold = environment.cold(workers(folder, MODULE), folder)
    assert cold.codes == {0: 0}, cold.outputs
    assert cold.one[1].count("imported False") == 2, cold.outputs
    return parameters_in(cold.one[1])


@pytest.mark.parametrize("launcher", [pytest.param(("torchrun",), marks=has_torchrun), MODULE])
def test_torchrun_and_its_workers(
    environment: Environment,
    server: ForkServer,
    tmp_path: Path,
    cold_parameters: list[str],
    launcher: tuple[str, ...],
) -> None:
    """Both are forked, and are in the attempt's control group: its limits are theirs."""
    argv = workers(tmp_path, launcher)
    with environment.control_group() as group:
        warm = environment.warm(server, argv, tmp_path, mode="host")
    assert warm.codes == {0: 0}, warm.outputs
    assert warm.one[1].count("imported True") == 2, warm.outputs
    assert warm.one[1].count(f"in its group {bool(group)}") == 2, warm.outputs
    assert len(cold_parameters) == 2
    assert parameters_in(warm.one[1]) == cold_parameters


@has_torchrun
def test_a_worker_that_fails_is_told_as_ever(
    environment: Environment, server: ForkServer, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import os, sys\nsys.exit(3 if os.environ['RANK'] == '1' else 0)\n")
    argv = ("torchrun", "--nproc-per-node=2", f"--master-port={free_port()}", "train.py")
    warm = environment.warm(server, argv, tmp_path, mode="host")
    assert warm.codes == environment.cold(argv, tmp_path).codes == {0: 1}
    assert "exitcode" in warm.one[1] and ": 3" in warm.one[1]


SPLIT = """
import sys
import torch
torch.manual_seed(3)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1)).backward()
    optimizer.step()
print("parts", sys.modules["cotenant.gradaccum"].PROGRESS.last_steps)
print([each.tolist() for each in model.parameters()])
"""


def test_the_start_up_hook_works_as_in_a_cold_start(
    environment: Environment, server: ForkServer, tmp_path: Path
) -> None:
    """The server ran it without our variables, before torch; a rank runs it again, with torch there."""
    (tmp_path / "split.py").write_text(SPLIT)
    late = {"COTENANT_ZERO_CODE": "accumulate", "COTENANT_ACCUMULATION_STEPS": "2", "COTENANT_PROTOCOL": "1"}
    argv = (sys.executable, "split.py")
    environment.late = late
    try:
        warm = environment.warm(server, argv, tmp_path)
        assert "parts 2" in warm.one[1].splitlines(), warm.one[1]
        assert warm == environment.cold(argv, tmp_path)
    finally:
        environment.late = {}


RESUMED = """
import os
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(3)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=8, shuffle=True)
for epoch in range(2):
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if number == 1 and os.path.exists("gate"):
            with open("gate") as gate:
                gate.readline()
print([each.tolist() for each in model.parameters()])
"""
"""Waits in its second step until a stop was agreed on."""


@pytest.mark.parametrize("words", [("plain.py",), ("-m", "plain"), ("-m", "package.plain")], ids=" ".join)
def test_a_plain_script_is_resumed_as_in_a_cold_start(
    environment: Environment, server: ForkServer, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """It is marked where it was left, and is nobody's `__main__` until the rank is one."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("print('imported once')\n")
    for folder in (tmp_path, tmp_path / "package"):
        (folder / "plain.py").write_text(RESUMED)
    argv = (sys.executable, *words)
    whole = environment.warm(server, argv, tmp_path)
    try:
        with Supervisor(environment.folder / f"s{len(words)}{words[-1]}", 1) as supervisor:
            stop_at_third_step(environment, server, supervisor, argv, tmp_path)
            for attempt, is_warm in ((2, True), (3, False)):
                environment.late = checkpointed(supervisor, tmp_path, attempt)
                again = (
                    environment.warm(server, argv, tmp_path) if is_warm else environment.cold(argv, tmp_path)
                )
                code, output = again.one
                lines = [line for line in output.splitlines() if not line.startswith("resumed from a1-s3")]
                assert (code, lines) == (0, whole.one[1].splitlines())
                assert len(lines) == len(output.splitlines()) - 1, "it has gone on"
    finally:
        environment.late = {}


def checkpointed(supervisor: Supervisor, folder: Path, attempt: int) -> dict[str, str]:
    return supervisor.env(folder / "root", attempt, COTENANT_ZERO_CODE="checkpoint")


def stop_at_third_step(
    environment: Environment,
    server: ForkServer,
    supervisor: Supervisor,
    argv: tuple[str, ...],
    folder: Path,
) -> None:
    os.mkfifo(folder / "gate")
    gate = os.open(folder / "gate", os.O_RDWR)
    environment.late = checkpointed(supervisor, folder, 1)
    running = environment.start(server, argv, folder)
    try:
        supervisor.wait_for("hello", resumable=True)
        assert supervisor.agree("stop_at", 3) == 3
        os.write(gate, b"\n")
        assert running.wait().codes == {0: 0}, running.outputs
    finally:
        running.close()
        os.close(gate)
        (folder / "gate").unlink()
