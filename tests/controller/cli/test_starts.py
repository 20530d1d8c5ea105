"""How often a command is started, and what its processes are told of their ranks: the rule as a table."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cotenant.agent.supervisor.processes.environment import Account, environment_of
from cotenant.controller.domain import Launch
from cotenant.controller.submission.script_signs import FILES_MAX
from cotenant.controller.submission.starts import Start, start_of, start_of_function
from tests.agent.supervisor.test_environment import order_of

RANKED, BARE, MET = "RANK LOCAL_RANK WORLD_SIZE", "", "GROUP_RANK MASTER_ADDR"
WORDS = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}

PLAIN = "import torch\nmodel = torch.nn.DataParallel(torch.nn.Linear(1, 1))\n"
GROUP = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
NANO = """
import os
from torch.distributed import init_process_group
ddp = int(os.environ.get('RANK', -1)) != -1
if ddp:
    init_process_group(backend='nccl')
    rank = int(os.environ['RANK'])
"""
MAE = """
import misc
def main(args):
    misc.init_distributed_mode(args)
if __name__ == '__main__':
    main(0)
"""
MISC = """
import os, torch
def init_distributed_mode(args):
    if 'RANK' in os.environ and 'WORLD_SIZE' in os.environ:
        args.rank = int(os.environ["RANK"])
    else:
        args.distributed = False
        return
    torch.distributed.init_process_group(backend='nccl', world_size=args.world_size, rank=args.rank)
"""
IN_MAIN = """
import torch.distributed as dist
def setup(): dist.init_process_group()
@record
def main():
    setup()
if __name__ == "__main__":
    try:
        main()
    except Exception:
        log()
        raise
"""
EITHER = """
import torch, torch.distributed as dist
if torch.backends.mps: dist.init_process_group("gloo")
else: dist.init_process_group("nccl")
"""
SET_UP = """
def join(backend): torch.distributed.init_process_group(backend)
if torch.backends.mps: join("gloo")
else: join("nccl")
"""
JOINS = "from cotenant.checkpoint import Session\nimport helpers\nhelpers.join()\nSession(model, optimizer)\n"
OPTION = "if args.use_ddp:\n    import torch\n    torch.distributed.init_process_group()\n"
UNUSED = "import helpers\nhelpers.log(0)\n"
HELPERS = "import torch.distributed as dist\nNAME = 'RANK'\ndef join(): dist.init_process_group()\n"
MODULE = "from .dist import join\njoin()\n"
ACCELERATE = "from accelerate import Accelerator as A\naccelerator = A()\n"
SPAWN = """
import torch.multiprocessing as mp, torch.distributed as dist
def work(rank): dist.init_process_group("gloo", rank=rank, world_size=2)
if __name__ == "__main__": mp.spawn(work, nprocs=2)
"""
MAYBE_SPAWN = """
import os, torch.multiprocessing as mp
from torch.distributed import init_process_group
def work(rank, args):
    if args.distributed: init_process_group(rank=int(os.environ["RANK"]))
if args.many: mp.spawn(work)
else: work(0, args)
"""
OWN_PROCESSES = """
import multiprocessing, torch.distributed as dist
def work(rank): dist.init_process_group("gloo", rank=rank, world_size=2)
multiprocessing.Process(target=work, args=(0,)).start()
"""
LIGHTNING = (
    "import lightning as L\nclass Net(L.LightningModule): pass\nL.Trainer(devices=DEVICES).fit(Net())\n"
)
SESSION = "from cotenant import checkpoint\nstate = checkpoint.Session(model, optimizer)\n"
TRAINER = (
    "from transformers import Trainer, TrainingArguments\nTrainer(args=TrainingArguments('out')).train()\n"
)
SAFE = "import torch.distributed as dist\ntry: dist.init_process_group()\nexcept Exception: alone = True\n"
NOT_TWICE = "import torch.distributed as dist\nif not dist.is_initialized(): dist.init_process_group()\n"
NEEDS = "import os, torch\ntorch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
IN_CLASS = """
import torch.distributed as dist
class Trainer:
    def setup(self): dist.init_process_group()
def run(config): Trainer().setup()
fire.Fire(run)
"""

ONCE, RANKS, GANGS, HOSTS = "once", "ranks", "ranks of a gang alone", "per host"
STARTS = {
    ONCE: ("process", BARE, BARE),
    RANKS: ("worker", RANKED, RANKED),
    GANGS: ("worker", BARE, RANKED),
    HOSTS: ("host", MET, MET),
}
"""The mode, and the words in the environment on one device and on two."""

TABLE: dict[str, tuple[str, str, str, dict[str, str]]] = {
    # A name, how it is started, the command, what is said, the files.
    "a plain script": (ONCE, "python t.py", "t.py makes no process group", {"t.py": PLAIN}),
    "a process group": (RANKS, "python t.py", "t.py line 2 calls init_process_group", {"t.py": GROUP}),
    "one for those who ask, as in nanoGPT": (GANGS, "python3 -u t.py", "line 6 calls", {"t.py": NANO}),
    "one in a module, as in MAE": (GANGS, "python t.py", "misc.py line 9", {"t.py": MAE, "misc.py": MISC}),
    "one in a function of main's": (RANKS, "python t.py", "line 3 calls", {"t.py": IN_MAIN}),
    "one of two backends": (RANKS, "python t.py", "line 3 calls", {"t.py": EITHER}),
    "one of two ways to set up": (RANKS, "python t.py", "line 2 calls", {"t.py": SET_UP}),
    "one beside a Session": (
        RANKS,
        "python t.py",
        "helpers.py line 3",
        {"t.py": JOINS, "helpers.py": HELPERS},
    ),
    "one that is made once": (RANKS, "python t.py", "line 2 calls", {"t.py": NOT_TWICE}),
    "one that is tried": (GANGS, "python t.py", "line 2 calls", {"t.py": SAFE}),
    "one that a framework calls": (RANKS, "python t.py", "line 4 calls", {"t.py": IN_CLASS}),
    "a rank that it needs": (RANKS, "python t.py", "line 2 reads LOCAL_RANK", {"t.py": NEEDS}),
    "an option not typed": (ONCE, "python t.py", "line 3 calls init_process_group under", {"t.py": OPTION}),
    "an option that is typed": (RANKS, "python t.py --use-ddp", "line 3 calls", {"t.py": OPTION}),
    "a word of hydra's": (RANKS, "python t.py use_ddp=true", "line 3 calls", {"t.py": OPTION}),
    "a helper that is not called": (
        ONCE,
        "python t.py",
        "t.py makes no",
        {"t.py": UNUSED, "helpers.py": HELPERS},
    ),
    "workers of its own": (HOSTS, "python t.py", "line 4 starts its workers itself", {"t.py": SPAWN}),
    "workers of its own, perhaps": (HOSTS, "python t.py", "line 6 starts its workers", {"t.py": MAYBE_SPAWN}),
    "ranks of its own": (
        HOSTS,
        "python t.py",
        "line 3 calls init_process_group with",
        {"t.py": OWN_PROCESSES},
    ),
    "Accelerate": (GANGS, "python t.py", "t.py line 2 uses Accelerate", {"t.py": ACCELERATE}),
    "Lightning": (GANGS, "python t.py", "line 3 uses Lightning", {"t.py": LIGHTNING.replace("DEVICES", "2")}),
    "Lightning on one": (ONCE, "python t.py", "makes no", {"t.py": LIGHTNING.replace("DEVICES", "1")}),
    "a Session": (GANGS, "python t.py", "t.py line 2 uses a Session", {"t.py": SESSION}),
    "Hugging Face's Trainer": (ONCE, "python t.py", "t.py makes no process group", {"t.py": TRAINER}),
    "a module": (
        RANKS,
        "python -m p.train",
        "p/dist.py line 3 calls",
        {"p/train.py": MODULE, "p/dist.py": HELPERS},
    ),
    "a package": (ONCE, "python -X dev -m pkg", "pkg makes no process group", {"pkg/__main__.py": PLAIN}),
    "behind env": (RANKS, "env A=1 python t.py", "t.py line 2 calls", {"t.py": GROUP}),
    "a file with its interpreter": (RANKS, "./t", "./t line 3", {"t": f"#!/usr/bin/env python3\n{GROUP}"}),
    "no such file": (ONCE, "python t.py", "t.py cannot be read here", {}),
    "no Python": (ONCE, "python t.py", "t.py cannot be read here", {"t.py": "print 'two'\n"}),
    "another program": (ONCE, "nvidia-smi -L", "what nvidia-smi runs is not looked into", {}),
    "a shell script": (ONCE, "bash run.sh", "what bash runs", {"run.sh": "python t.py\n", "t.py": GROUP}),
    "an argument like a launcher": (ONCE, "bash run.sh torchrun", "not looked into", {"run.sh": "ls\n"}),
    "options like a launcher": (ONCE, "python t.py -m torch.distributed.run", "makes no", {"t.py": PLAIN}),
    "another verb of accelerate's": (ONCE, "accelerate config", "not looked into", {}),
    "torchrun": (HOSTS, "torchrun t.py", "", {"t.py": GROUP}),
    "accelerate": (HOSTS, "accelerate launch t.py", "", {}),
    "deepspeed": (HOSTS, "/opt/bin/deepspeed t.py", "", {}),
    "torchrun behind uv": (HOSTS, "uv run torchrun t.py", "", {}),
    "torchrun as a module": (HOSTS, "python3.11 -u -m torch.distributed.run t.py", "", {}),
    "deepspeed as a module": (HOSTS, "python -m deepspeed.launcher.runner t.py", "", {}),
    "torchrun in a shell script": (HOSTS, "bash -e run.sh", "", {"run.sh": "cd x && A=1 torchrun t.py\n"}),
}


def words_of(start: Start, devices: int) -> set[str]:
    """The words about ranks in the environment of a job's process."""
    launch = Launch(argv=("x",), mode=start.mode, ranked_alone=start.ranked_alone)
    order = order_of(hosts=1, each=devices, launch=launch)
    return WORDS & environment_of(order, order.ranks[0], Path("/s"), Account()).keys()


@pytest.mark.parametrize(("started", "command", "said", "files"), TABLE.values(), ids=TABLE.keys())
def test_a_command_is_started_as_it_was_typed_unless_its_script_makes_ranks(
    tmp_path: Path, started: str, command: str, said: str, files: dict[str, str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    start = start_of(command.split(), tmp_path)
    mode, *wanted = STARTS[started]
    assert start.mode == mode
    assert said in start.why and bool(said) == bool(start.why), start.why
    for devices, words in zip((1, 2), wanted, strict=True):
        found = words_of(start, devices)
        assert found >= {*words.split()} and bool(found) == bool(words), "all of them or none"
    other = "--launch process" if mode == "worker" else "--launch worker" if said else ""
    assert other in start.note("2"), "who wants it otherwise is told how"


def test_text_behind_a_flag_is_read_as_a_script_is(tmp_path: Path) -> None:
    start = start_of(("python", "-c", GROUP), tmp_path)
    assert (start.mode, start.why) == ("worker", "the text behind -c line 2 calls init_process_group")
    assert start_of(("python", "-c", "print('hello')"), tmp_path).mode == "process"
    assert start_of(("sh", "-c", "exec torchrun t.py"), tmp_path).mode == "host"
    assert start_of(("sh", "-c", "echo torchrun-like"), tmp_path).mode == "process"


def test_modules_on_the_python_path_are_the_users_own_but_for_installed_ones(tmp_path: Path) -> None:
    for folder in ("lib", "site-packages"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "joins.py").write_text(GROUP)
    (tmp_path / "t.py").write_text("import joins\n")
    assert start_of(("python", "t.py"), tmp_path, f"{tmp_path}/lib").mode == "worker"
    assert start_of(("python", "t.py"), tmp_path, f"{tmp_path}/site-packages").mode == "process"
    assert start_of(("python", "t.py"), tmp_path, "lib").mode == "process", "relative to another folder there"


def test_no_more_than_so_many_files_are_read(tmp_path: Path) -> None:
    """Those that may have a sign are read first; what was not read is not claimed."""
    names = [f"m{no}" for no in range(FILES_MAX + 10)]
    for name in names:
        (tmp_path / f"{name}.py").write_text("x = 1\n")
    (tmp_path / "t.py").write_text(f"import {', '.join(names)}\n")
    assert start_of(("python", "t.py"), tmp_path).why.endswith(
        "makes no process group, as far as it was read"
    )
    (tmp_path / f"{names[-1]}.py").write_text(GROUP)
    assert start_of(("python", "t.py"), tmp_path).why == f"{names[-1]}.py line 2 calls init_process_group"


def test_modules_that_import_each_other_and_names_that_mean_themselves_end(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("import u\ndef f(): f()\nf()\nu.f()\n")
    (tmp_path / "u.py").write_text("import t\nfrom . import t\nfrom .. import x\ndef f(): t.f()\n")
    assert start_of(("python", "t.py"), tmp_path).mode == "process"
    (tmp_path / "t.py").write_text("x = " + "(" * 5000 + "0" + ")" * 5000)
    assert start_of(("python", "t.py"), tmp_path).why == "t.py cannot be read here"
    (tmp_path / "t.py").write_text("x = " + "+".join("x" * 3000))
    assert start_of(("python", "t.py"), tmp_path).mode == "process"


def test_only_files_are_read_and_a_folder_that_is_closed_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")  # As in `python <(make-script)`: what is read of it nobody else reads.
    assert start_of(("python", "pipe"), tmp_path).why == "pipe cannot be read here"
    (tmp_path / "t.py").write_bytes(b"\xef\xbb\xbfimport joins, os\nname = '\\d' + '\xff'\n")
    monkeypatch.setattr(os, "stat", _closed(os.stat, tmp_path / "closed"))
    assert start_of(("python", "t.py"), tmp_path, f"{tmp_path}/closed").why == "t.py makes no process group"


def _closed(stat: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    def refuse(path: Any, *more: Any, **named: Any) -> Any:
        if str(path).startswith(str(folder)):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *more, **named)

    return refuse


def test_of_a_function_only_what_it_calls_counts(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"from helpers import join\n{PLAIN}def ddp(): join()\ndef plain(): pass\nplain(ddp)\n")
    (tmp_path / "helpers.py").write_text(HELPERS)
    assert start_of_function("plain", file, "", ()).note("2") == (
        "one process that sees 2 GPUs of one host: plain() makes no process group "
        "(--launch worker starts one per GPU)"
    )
    assert start_of_function("ddp", file, "", ()).note("2") == (
        "2 processes, one per GPU: helpers.py line 3 calls init_process_group "
        "(--launch process starts it once)"
    )
    assert start_of_function("f", None, "def f():\n    dist.init_process_group()\n", ()).mode == "worker"
    assert start_of_function("f", None, "", ()).why == "f() cannot be read here"
