"""What comes from outside a process is decoded in one place, and files of users are handled in one place.

Rule: an agent, a supervisor or a watcher may be root. What it does by a path must be on paths that nobody
else can change (`PATHS` says which those are); everything else goes through `agent/host/user_files.py`.
Foreign bytes go through `controller/wire/codec.py`, or through a `try` that expects all that decoding them
raises. Both lists name what they allow call by call: a new kind of call in a file needs a reason, and one
that is gone goes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.test_imports import ROOT, imports_in, module_of

USER_FILES = "agent/host/user_files.py"
CODEC = "controller/wire/codec.py"

# --- Paths -----------------------------------------------------------------------------------------

STATE = "the agent's own folder, which nobody else can change: agent/host/folders.py refuses another"
KERNEL = "/proc, /sys or /dev: only the kernel makes names there"
CGROUP = "cgroup file systems: a group that jobs of users were given would be a fault of its own"
TOOL = "looks for a program in the agent's own PATH"
RUNTIME = "root's own runtime folder (/run/cotenant), or where the administrator says"
OWNER = "not the agent: the controller's or a person's own folder"
CHECKED = "opened without following a link, and its owner and kind are read from the descriptor"

# fmt: off
PATHS: dict[str, tuple[str, frozenset[str]]] = {
    "agent/supervisor/sockets.py": (
        "bound before the folder is the job's user's; unlinked in ours",
        frozenset((".bind", ".unlink")),
    ),
    "agent/supervisor/datagrams.py": (
        "bound before the folder is the job's user's; unlinked in, and sent through, an open Folder, or ours",
        frozenset((".bind", ".sendto", ".unlink")),
    ),
    "agent/supervisor/processes/logs.py": (STATE, frozenset(("open", "os.open", "os.scandir", ".unlink"))),
    "agent/supervisor/processes/attempt_folder.py": (
        "--output is opened with its user's rights; the link to the sockets is unlinked in an open Folder",
        frozenset(("os.open", ".unlink")),
    ),
    "agent/supervisor/processes/ranks.py": (
        KERNEL,
        frozenset((".read_text", "os.listdir", "os.open")),
    ),
    "agent/supervisor/processes/measuring.py": (KERNEL, frozenset((".read_text",))),
    "agent/supervisor/runtime.py": (STATE, frozenset((".mkdir",))),
    "agent/containers/processes.py": (KERNEL, frozenset((".read_bytes", "os.listdir"))),
    "agent/containers/runtimes.py": (
        f"{TOOL}; files below /etc, /run and /sys that are root's",
        frozenset((".read_text", "shutil.which")),
    ),
    "agent/daemon/warm_starts.py": (STATE, frozenset((".mkdir", "open", "os.rmdir"))),
    "agent/warm/spawn.py": (f"{KERNEL}; {STATE}", frozenset((".bind", ".unlink", ".write_text"))),
    "agent/daemon/supervisors.py": (STATE, frozenset((".glob", ".iterdir", ".mkdir", ".open", "open",
    "os.open"))), "agent/ipc/files.py": (STATE, frozenset((".open", "os.replace"))),
    "agent/ipc/channel.py": (STATE, frozenset((".open_unix_connection", "os.open"))),
    "agent/gpus/mps_edge.py": (STATE, frozenset((".iterdir",))),
    "agent/gpus/nvml_watch.py": (KERNEL, frozenset(("os.open",))),
    "agent/gpus/owners.py": (f"{KERNEL}; {STATE}", frozenset(("os.listdir",))),
    "agent/host/cgroups.py": (CGROUP, frozenset((".glob", ".mkdir", ".read_text", ".rmdir", ".write_text"))),
    "agent/host/cgroup_mounts.py": (CGROUP, frozenset((".mkdir", ".read_text", ".rmdir", ".write_text"))),
    "agent/host/checkpoint_root.py": (
        "the root is where the administrator says; what is in it goes through an open Folder",
        frozenset((".mkdir", ".unlink")),
    ),
    "agent/host/facts.py": (KERNEL, frozenset((".read_text", "open"))),
    "agent/host/process_identity.py": (KERNEL, frozenset((".read_text", "os.listdir"))),
    "agent/supervisor/port_connection.py": (KERNEL, frozenset(("os.listdir",))),
    "agent/host/folders.py": (STATE, frozenset((".mkdir", ".read_bytes"))),
    "agent/host/jobside.py": (
        f"{STATE}; read from where cotenant is installed",
        frozenset((
            ".chmod", ".iterdir", ".mkdir", ".read_bytes", ".rglob", ".write_bytes", "os.rename",
            "shutil.rmtree",
        )),
    ),
    "agent/daemon/disk_use.py": (STATE, frozenset((".iterdir",))),
    "agent/daemon/trees.py": (
        f"{STATE}; what is given to a user lies in a folder that nobody else can enter",
        frozenset((
            ".chmod", ".glob", ".mkdir", ".open", ".unlink", "os.chown", "os.rename", "shutil.disk_usage",
        )),
    ),
    "agent/host/trees.py": (
        f"a process of its own with its user's rights, in a folder that nobody else can enter; {KERNEL}",
        frozenset((".chmod", ".mkdir", ".symlink_to", "open", "os.open", "shutil.copyfileobj")),
    ),
    "agent/slurm/allocation.py": (
        "a folder of its own that `mkdtemp` has made; a queue's folder is 0700 and its user's",
        frozenset((".chmod", ".read_text", "shutil.rmtree")),
    ),
    "agent/host/lock_holders.py": (KERNEL, frozenset((".read_bytes", ".read_text", "os.listdir"))),
    "agent/host/locks.py": (CHECKED, frozenset(("os.mkdir", "os.open", "os.rename"))),
    "agent/supervisor/processes/reaper.py": (
        f"{KERNEL}; {STATE}",
        frozenset((".read_bytes", ".touch", "os.listdir")),
    ),
    "agent/daemon/spool.py": (STATE, frozenset((".read_bytes", "os.open"))),
    "controller/system/endpoint.py": (
        f"{OWNER}; the other is bound to a network address",
        frozenset((".bind", ".mkdir")),
    ),
    "controller/system/files.py": (
        f"{STATE}; no link is followed in a key's folder; `output` is for a person's own files",
        frozenset((".unlink", ".write_bytes", "os.open", "os.replace", "os.unlink")),
    ),
    "controller/system/trees.py": (
        f"{STATE}; {OWNER}",
        frozenset((".glob", ".mkdir", ".open", ".unlink", "os.open", "os.utime")),
    ),
    "controller/system/locks.py": (CHECKED, frozenset(("os.open",))),
    "controller/system/keys.py": (
        f"{OWNER}; an agent reads its key where the administrator put it",
        frozenset((".glob", ".mkdir", ".read_text", "os.chmod")),
    ),
    "controller/system/paths.py": (CHECKED, frozenset((".mkdir", "os.open"))),
    "controller/system/settings.py": ("read from where the administrator put it", frozenset((".glob",
    ".read_text"))), "mps/channel.py": (CHECKED, frozenset(("os.open",))),
    "mps/detection.py": (TOOL, frozenset(("shutil.which",))),
    "mps/ownership.py": (
        f"{RUNTIME}; {STATE}",
        frozenset((".chmod", ".mkdir", ".open", ".write_bytes", "os.open", "os.setxattr", "os.truncate")),
    ),
    "mps/process.py": (KERNEL, frozenset((".read_bytes", ".read_text", "os.listdir"))),
    "mps/daemon.py": (RUNTIME, frozenset((".glob", ".unlink"))),
    "profiler/driver/cdi.py": ("/etc/cdi is root's", frozenset((".glob", ".read_bytes"))),
    "profiler/driver/probe_client.py": (KERNEL, frozenset((".iterdir", ".read_text"))),
    "profiler/driver/process_info.py": (KERNEL, frozenset((".read_bytes", ".read_text"))),
    "profiler/indicators/cpu.py": (KERNEL, frozenset((".glob", ".read_text", "open", "os.listdir"))),
}
OS = frozenset((
    "chmod", "chown", "lchown", "link", "listdir", "makedirs", "mkdir", "mkfifo", "mknod", "open", "remove",
    "removedirs", "removexattr", "rename", "renames", "replace", "rmdir", "scandir", "setxattr", "symlink",
    "truncate", "unlink", "utime", "walk",
))
PATH = frozenset((
    "bind", "chmod", "glob", "hardlink_to", "iterdir", "lchmod", "mkdir", "read_bytes", "read_text", "rename",
    "rglob", "rmdir", "sendto", "symlink_to", "touch", "unlink", "write_bytes", "write_text",
    "open_unix_connection",
))
# fmt: on
"""Methods of a Path, and of sockets, whose addresses are paths as well. `open` only with a mode."""


def paths_followed(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        by_folder = any(str(keyword.arg).endswith("dir_fd") for keyword in node.keywords)
        match node.func:
            case ast.Name(id="open"):
                yield "open"
            case ast.Attribute(value=ast.Name(id="os"), attr=name):
                if name in OS and not by_folder:
                    yield f"os.{name}"
            case ast.Attribute(value=ast.Name(id="shutil"), attr=name):
                yield f"shutil.{name}"
            case ast.Attribute(attr="open"):
                if any(isinstance(each, ast.Constant) for each in node.args):
                    yield ".open"
            case ast.Attribute(attr=name) if name in PATH:
                yield f".{name}"


WITH_USERS_RIGHTS = ("cotenant.agent.slurm.steps", "cotenant.agent.warm.forkserver")
"""Run as the job's user: no agent loads them."""


def of_agents() -> list[str]:
    """The files of every module that an agent may have loaded: its own, and what they import, to the end."""
    files = {
        module_of(path): path for top in ("agent", "controller", "mps", "profiler") for path in files_of(top)
    }
    waiting = {
        module
        for module in files
        if module.startswith("cotenant.agent") and not module.startswith(WITH_USERS_RIGHTS)
    }
    reached: set[str] = set()
    while waiting:
        module = waiting.pop()
        reached.add(module)
        path = files[module]
        for each in imports_in(path.read_text(), module, path.name == "__init__.py"):
            known = each.module if each.module in files else each.module.rpartition(".")[0]
            if known in files and known not in reached:
                waiting.add(known)
    return sorted(str(files[module].relative_to(ROOT)) for module in reached)


def files_of(top: str) -> list[Path]:
    return sorted((ROOT / top).rglob("*.py"))


def test_agents_follow_paths_only_where_nobody_else_can_change_them() -> None:
    found = {path: frozenset(paths_followed((ROOT / path).read_text())) for path in of_agents()}
    unknown = {
        path: sorted(calls - PATHS.get(path, ("", frozenset()))[1])
        for path, calls in found.items()
        if path != USER_FILES and calls - PATHS.get(path, ("", frozenset()))[1]
    }
    assert unknown == {}, f"use {USER_FILES}, or give the reason why nobody else can change these paths"
    gone = {path: sorted(calls - found.get(path, frozenset())) for path, (_, calls) in PATHS.items()}
    assert {path: calls for path, calls in gone.items() if calls} == {}


FOLLOWING = {
    "open(path)": "open",
    "os.chmod(path, 0o600)": "os.chmod",
    "shutil.rmtree(folder, ignore_errors=True)": "shutil.rmtree",
    "path.chmod(0o600)": ".chmod",
    "(folder / name).write_text(x)": ".write_text",
    "path.open('rb')": ".open",
    "link.resolve().unlink(missing_ok=True)": ".unlink",
    "connection.sendto(data, str(path))": ".sendto",
}


@pytest.mark.parametrize(("source", "call"), FOLLOWING.items(), ids=FOLLOWING.keys())
def test_a_path_that_is_followed_is_seen(source: str, call: str) -> None:
    assert list(paths_followed(source)) == [call]


@pytest.mark.parametrize(
    "source", ["os.unlink(name, dir_fd=folder)", "os.rename(a, b, src_dir_fd=f, dst_dir_fd=g)", "link.open()"]
)
def test_a_step_from_an_open_folder_is_none(source: str) -> None:
    assert list(paths_followed(source)) == []


# --- Decoding --------------------------------------------------------------------------------------

PARSERS = (
    *("json.load", "json.loads", "tomllib.load", "tomllib.loads", "yaml.compose", "yaml.load", "pickle.load"),
    *("pickle.loads", "msgpack.unpack", "msgpack.unpackb", "msgpack.Unpacker"),
    *(
        f"msgspec.{form}.{how}"
        for form in ("json", "msgpack", "toml", "yaml")
        for how in ("decode", "Decoder")
    ),
)
PARSES = frozenset(parser.rpartition(".")[2] for parser in PARSERS)
TEXT_ERRORS = frozenset(("ValueError", "UnicodeDecodeError", "UnicodeError"))

NUMBERS = "the kernel's own numbers and names: ASCII"
OURS = "what this process has just encoded, or its own library has"
PURE = (
    "pure code, which cannot see the wire; whoever loads a snapshot expects its errors (journal/recovery.py)"
)
PERSON = "a command of a person about files of his own, which another command of ours has just written"
PICKLED = "a file that its own user alone can write, as python/folders.py has seen; any error is told"
# fmt: off
DECODED: dict[str, tuple[str, frozenset[str]]] = {
    "agent/warm/forkserver/server.py": ("what our agent has just encoded", frozenset(("json.loads",))),
    "agent/host/trees.py": ("what our agent has just encoded", frozenset(("json.loads",))),
    "agent/supervisor/processes/measuring.py": (NUMBERS, frozenset((".read_text",))),
    "agent/slurm/allocation.py": (OURS, frozenset((".read_text",))),
    "agent/slurm/steps/srun.py": ("what our agent has set", frozenset(("json.loads",))),
    "agent/host/cgroups.py": (NUMBERS, frozenset((".read_text",))),
    "agent/host/cgroup_mounts.py": (NUMBERS, frozenset((".read_text",))),
    "agent/host/facts.py": (NUMBERS, frozenset((".read_text",))),
    "agent/host/process_identity.py": (NUMBERS, frozenset((".read_text",))),
    "controller/system/keys.py": (OURS, frozenset((".decode",))),
    "controller/cli/frame/output.py": (OURS, frozenset((".decode",))),
    "profiler/driver/cuda_probe.py": ("what is no UTF-8 is replaced", frozenset((".decode",))),
    "controller/present/terminal.py": ("what is no UTF-8 is replaced", frozenset((".decode",))),
    "controller/cli/demo/report.py": (PERSON, frozenset(("json.loads",))),
    "controller/router.py": (OURS, frozenset((".decode",))),
    "controller/models/interference/model_file.py": (OURS, frozenset((".decode",))),
    "controller/notices/notifier.py": (OURS, frozenset((".decode",))),
    "controller/system/notice_sender.py": (OURS, frozenset(("json.load",))),
    "controller/store/clock.py": (NUMBERS, frozenset((".read_text",))),
    "controller/papers/literature/scores.py": (PURE, frozenset(("msgspec.msgpack.decode",))),
    "controller/papers/literature/two_class.py": (PURE, frozenset(("msgspec.msgpack.decode",))),
    "controller/papers/gfs/forecasting.py": (PURE, frozenset(("msgspec.msgpack.decode",))),
    "controller/papers/gfs/policy.py": (PURE, frozenset(("msgspec.msgpack.decode",))),
    "controller/papers/lazer/policy.py": (PURE, frozenset(("msgspec.msgpack.decode",))),
    "controller/papers/rltune/model.py": (PERSON, frozenset(("msgspec.json.decode",))),
    "controller/policies/multifactor.py": (PURE, frozenset(("msgspec.msgpack.decode",))),
    "controller/papers/pcs/policy.py": (PURE, frozenset(("msgspec.msgpack.decode",))),
    "controller/policies/toolkit/whole_queue.py": (PURE, frozenset(("msgspec.msgpack.decode",))),
    "controller/python/inside.py": (PICKLED, frozenset(("pickle.load",))),
    "controller/python/results.py": (PICKLED, frozenset(("pickle.load",))),
    "controller/sim/past/journal.py": (OURS, frozenset(("msgspec.msgpack.decode",))),
    "controller/slurm/steer/steerer.py": (PERSON, frozenset(("msgspec.json.decode",))),
    "controller/training/boosting.py": (OURS, frozenset(("json.loads",))),
    "mps/process.py": (NUMBERS, frozenset((".read_text",))),
    "profiler/driver/library.py": (OURS, frozenset((".decode",))),
    "profiler/indicators/cpu.py": (NUMBERS, frozenset((".read_text",))),
    "profiler/indicators/dcgm.py": (OURS, frozenset((".decode",))),
}
# fmt: on


DECODING = (*PARSES, "decode", "read_text")
"""Without any of them a file need not be parsed."""


def decoded(node: ast.AST, caught: frozenset[str] = frozenset()) -> Iterator[str]:
    """Calls that decode, and may raise what nobody there expects."""
    if isinstance(node, ast.Try):
        inside = caught | {name for handler in node.handlers for name in names_of(handler.type)}
        for part in node.body:
            yield from decoded(part, inside)
        for rest in (*node.handlers, *node.orelse, *node.finalbody):
            yield from decoded(rest, caught)
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        caught = frozenset()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        call = ast.unparse(node.func) if node.func.attr in PARSES else ""
        replaces = any(keyword.arg == "errors" for keyword in node.keywords)
        expects_text = bool(caught & TEXT_ERRORS)
        if call in PARSERS:
            if not expects_text or "RecursionError" not in caught:
                yield call
        elif (
            node.func.attr in ("decode", "read_text")
            and not (
                node.func.attr == "read_text" and node.args
            )  # A function of ours, which is given the path.
            and not (replaces or expects_text)
            and "BadMessage" not in caught  # One of the codec's own decoders.
        ):
            yield f".{node.func.attr}"
    for child in ast.iter_child_nodes(node):
        yield from decoded(child, caught)


def names_of(caught: ast.expr | None) -> Iterator[str]:
    for each in caught.elts if isinstance(caught, ast.Tuple) else [caught]:
        if isinstance(each, ast.Name | ast.Attribute):
            yield each.attr if isinstance(each, ast.Attribute) else each.id


def test_foreign_bytes_are_decoded_in_one_place() -> None:
    folders = ("agent", "controller", "mps", "profiler")
    files = {str(path.relative_to(ROOT)): path for folder in folders for path in files_of(folder)}
    del files[CODEC]
    texts = {name: path.read_text() for name, path in files.items()}
    suspects = {name: text for name, text in texts.items() if any(word in text for word in DECODING)}
    found = {name: frozenset(decoded(ast.parse(text))) for name, text in suspects.items()}
    unknown = {
        name: sorted(calls - DECODED.get(name, ("", frozenset()))[1])
        for name, calls in found.items()
        if calls - DECODED.get(name, ("", frozenset()))[1]
    }
    assert unknown == {}, f"use {CODEC}, or give the reason why these bytes can hold no surprise"
    gone = {name: sorted(calls - found.get(name, frozenset())) for name, (_, calls) in DECODED.items()}
    assert {name: calls for name, calls in gone.items() if calls} == {}


@pytest.mark.parametrize(
    "source",
    [
        "msgspec.json.decode(data, type=Order)",
        "try:\n    json.loads(data)\nexcept ValueError:\n    pass",
        "try:\n    msgspec.json.decode(data)\nexcept msgspec.DecodeError:\n    pass",
        "try:\n    path.read_text()\nexcept OSError:\n    pass",
        "try:\n    pass\nexcept ValueError:\n    data.decode()",
    ],
)
def test_bytes_that_are_decoded_elsewhere_are_seen(source: str) -> None:
    assert len(list(decoded(ast.parse(source)))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    json.loads(data)\nexcept (ValueError, RecursionError):\n    pass",
        "data.decode(errors='replace')",
        "try:\n    path.read_text()\nexcept UnicodeDecodeError:\n    pass",
    ],
)
def test_bytes_that_cannot_surprise_are_let_pass(source: str) -> None:
    assert list(decoded(ast.parse(source))) == []
