"""Trees in, the same trees out; archives that nobody of ours has made do no harm."""

from __future__ import annotations

import gzip
import io
import os
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.host import trees
from cotenant.agent.host.trees import BadTree
from cotenant.controller.present.snapshots import untracked_in_words
from cotenant.controller.submission import packing
from cotenant.controller.submission.build import Submitter, submission
from cotenant.controller.submission.options import BY_KEY, BadSubmission, read
from cotenant.controller.submission.packing import PackedTree, pack_tree, words_in_tree
from cotenant.controller.submission.recording import record

NAMES = st.sampled_from(["a", "b.py", "c d", "\u00fc", "\udcff", "-x", ".hidden", "n" * 120])
"""The fifth is no text in any encoding."""
Tree = dict[str, "bytes | str | Tree"]
"""A folder: files with their content, links with their targets, folders."""
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.dictionaries(NAMES, st.binary(max_size=9) | st.sampled_from(["a", "./c d", "/dev/null"]), max_size=4),
    lambda inner: st.dictionaries(NAMES, inner | st.binary(max_size=9), max_size=4),
    max_leaves=8,
)


def unpack_tree(packed: Path, copy: Path, bytes_max: int, subfolder: str = "") -> None:
    copy.mkdir()
    with packed.open("rb") as file:
        trees.unpack(file, copy, bytes_max, subfolder)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def make(tree: Tree, top: Path, mode: int = 0o644) -> Path:
    top.mkdir()
    for name, content in tree.items():
        if isinstance(content, bytes):
            (top / name).write_bytes(content)
            (top / name).chmod(mode)
        elif isinstance(content, str):
            (top / name).symlink_to(content)
        else:
            make(content, top / name, mode)
    return top


def seen(top: Path) -> dict[str, tuple[int, object]]:
    """Everything below a folder, with its kind and mode."""
    found: dict[str, tuple[int, object]] = {}
    for path in top.rglob("*"):
        mode = path.lstat().st_mode
        is_file, is_link = stat.S_ISREG(mode), stat.S_ISLNK(mode)
        content = path.read_bytes() if is_file else os.readlink(path) if is_link else b""
        found[str(path.relative_to(top))] = (mode, content)
    return found


def pack(top: Path, kind: Literal["git", "copy"] = "copy", *more: Path, size_max_mib: int = 1) -> PackedTree:
    return pack_tree(kind, top, more, top.parent / "packed", size_max_mib)


def unpack(top: Path, tree: PackedTree) -> Path:
    copy = top.parent / "copy"
    snapshot = tree.snapshot
    unpack_tree(top.parent / "packed" / snapshot.sha256, copy, snapshot.content_bytes, snapshot.subfolder)
    return copy


@given(TREES, st.sampled_from([0o644, 0o755, 0o600]))
def test_a_tree_comes_out_as_it_went_in(tree: Tree, mode: int) -> None:
    with folder() as place:
        top = make(tree, place / "top", mode)
        packed = pack(top)
        assert seen(unpack(top, packed)) == seen(top)
        for path in top.rglob("*"):
            os.utime(path, (1, 1), follow_symlinks=False)
        assert pack(top).snapshot == packed.snapshot, "times are no part of it"


KINDS = st.sampled_from(
    [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
HOSTILE = st.sampled_from(["a", "a/b", "a/b/c", "../x", "a/../../x", "/tmp/x", ".", "..", "a//b", "x"])
TARGETS = st.sampled_from(["..", "../..", "/", "a", "../x", "", "a/../../x", "."])


@given(st.lists(st.tuples(HOSTILE, KINDS, TARGETS), max_size=6), st.sampled_from(["", "a", "a/b", "x/y"]))
def test_nothing_is_written_outside(entries: list[tuple[str, bytes, str]], subfolder: str) -> None:
    with folder() as place:
        (place / "x").write_text("untouched")
        (place / "work").mkdir()
        with gzip.open(place / "packed", "wb") as file, tarfile.open(fileobj=file, mode="w") as archive:
            for name, kind, target in entries:
                info = tarfile.TarInfo(name)
                info.type, info.linkname, info.mode = kind, target, 0o7777
                info.size = 4 if kind == tarfile.REGTYPE else 0
                archive.addfile(info, io.BytesIO(b"evil"))
        with suppress(BadTree):
            unpack_tree(place / "packed", place / "work" / "copy", 8, subfolder)
        assert sorted(each.name for each in place.iterdir()) == ["packed", "work", "x"]
        assert (place / "x").read_text() == "untouched"
        for mode, _ in seen(place / "work").values():
            assert stat.S_IFMT(mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
            assert not mode & (stat.S_ISUID | stat.S_ISGID)


@pytest.mark.parametrize("cut", [0, 10, 40])
def test_a_damaged_archive_is_refused(tmp_path: Path, cut: int) -> None:
    top = make({"a": b"x" * 5000}, tmp_path / "top")
    packed = pack(top)
    path = tmp_path / "packed" / packed.snapshot.sha256
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BadTree, match="damaged"):
        unpack(top, packed)


def test_more_than_was_announced_is_refused(tmp_path: Path) -> None:
    top = make({"a": b"12345"}, tmp_path / "top")
    packed = pack(top)
    with pytest.raises(BadTree, match="more than was announced"):
        unpack_tree(tmp_path / "packed" / packed.snapshot.sha256, tmp_path / "copy", 4)


# --- What is packed ----------------------------------------------------------------------------------


def git(top: Path, *words: str) -> None:
    name = ("-c", "user.name=ann", "-c", "user.email=ann@example.org", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *name, *words], cwd=top, check=True, capture_output=True)


def repository(tree: Tree, top: Path) -> Path:
    make(tree, top)
    git(top, "init", "-q", "-b", "main")
    git(top, "add", ".")
    git(top, "commit", "-q", "-m", "one")
    return top


def test_git_is_the_working_tree_of_what_is_tracked(tmp_path: Path) -> None:
    top = repository({"a.py": b"1", "gone": b"", "sub": {"b": b"2"}, "link": "a.py"}, tmp_path / "top")
    clean = pack(top, "git").snapshot
    (top / "a.py").write_bytes(b"edited")
    (top / "gone").unlink()
    (top / "new").write_bytes(b"new")
    (top / "data").mkdir()
    (top / "data" / "x").write_bytes(b"x")
    packed = pack(top / "sub", "git", top / "data")
    tree = packed.snapshot
    assert (clean.dirty, tree.dirty, tree.branch, tree.subfolder) == (False, True, "main", "sub")
    assert clean.commit == tree.commit and len(tree.commit) == 40
    copy = tmp_path / "copy"
    unpack_tree(top / "packed" / tree.sha256, copy, tree.content_bytes, tree.subfolder)
    files = {name: content for name, (_, content) in seen(copy).items()}
    wanted = {"a.py": b"edited", "data": b"", "data/x": b"x", "link": "a.py", "sub": b"", "sub/b": b"2"}
    assert files == wanted


def test_untracked_files_are_named_scripts_first(tmp_path: Path) -> None:
    top = make(
        {"a.py": b"1", "b.txt": b"2", "z.py": b"3", "taken.py": b"", ".gitignore": b"*.log", "x.log": b""},
        tmp_path / "t",
    )
    git(top, "init", "-q")
    git(top, "add", "a.py", ".gitignore")
    tree = pack(top, "git", top / "taken.py")
    assert tree.untracked == ("z.py", "b.txt"), "what is ignored is nobody's slip"
    assert untracked_in_words(tree.untracked) == "2 untracked files left out: z.py, b.txt"
    assert untracked_in_words(("helper.py",)) == "1 untracked file left out: helper.py"
    many = untracked_in_words([f"{at}\n.py" for at in range(1_007)])
    assert (
        many == "1,007 untracked files left out: 0\\n.py, 1\\n.py, 2\\n.py, 3\\n.py, 4\\n.py and 1,002 more"
    )
    assert pack(top, "copy").untracked == ()


def test_a_repository_without_files_is_refused_and_one_around_a_foreign_folder_is_not_its_own(
    tmp_path: Path,
) -> None:
    top = make({"mine": {"a.py": b"1"}, "theirs": {"b.py": b"2"}}, tmp_path / "home")
    git(top, "init", "-q")
    with pytest.raises(BadSubmission, match="git tracks no file in"):
        pack(top, "git")
    git(top, "add", "mine")
    git(top, "commit", "-q", "-m", "dotfiles")
    assert pack(top / "mine").snapshot.commit
    assert not pack(top / "theirs").snapshot.commit


def test_the_variables_of_a_git_hook_lead_to_no_other_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = repository({"a.py": b"1"}, tmp_path / "mine")
    other = repository({"b.py": b"2"}, tmp_path / "other")
    alone = pack(top, "git")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert pack(top, "git") == alone
    assert not {"GIT_DIR", "GIT_INDEX_FILE"} & set(record(os.environ, ("ALL",)).open)


def test_of_what_is_too_large_only_large_files_are_named(tmp_path: Path) -> None:
    top = make({"large": os.urandom(1 << 21), "small": b"x"}, tmp_path / "t")
    with pytest.raises(BadSubmission, match=r"largest files: large \(2.0 MiB\);"):
        pack(top)


def test_submodules_are_packed_or_refused_where_they_are_not_checked_out(tmp_path: Path) -> None:
    repository({"lib.py": b"lib"}, tmp_path / "lib")
    top = repository({"a.py": b"1"}, tmp_path / "top")
    git(top, "submodule", "add", "-q", str(tmp_path / "lib"), "lib")
    git(top, "commit", "-q", "-m", "two")
    assert pack(top, "git").names == {".gitmodules", "a.py", "lib/lib.py"}
    git(top, "submodule", "deinit", "-q", "-f", "lib")
    with pytest.raises(BadSubmission, match="submodule lib is not checked out") as refused:
        pack(top, "git")
    assert refused.value.hint == "git submodule update --init lib"


def test_copy_leaves_out_environments_caches_and_what_is_ignored(tmp_path: Path) -> None:
    tree: Tree = {
        ".cotenantignore": b"# large\n*.ckpt\nruns/\n/out/log\n",
        "a.py": b"1",
        "b.ckpt": b"",
        "runs": {"x": b""},
        "out": {"log": b"", "kept": b"", "runs": b""},
        ".git": {"HEAD": b""},
        "__pycache__": {"a.pyc": b""},
        "venv": {"pyvenv.cfg": b"", "bin": {"python": b""}},
    }
    top = make(tree, tmp_path / "top")
    assert pack(top).names == {".cotenantignore", "a.py", "out", "out/kept"}
    assert "runs/x" in pack(top, "copy", top / "runs").names


REFUSED = {
    "a fifo": ("mkfifo p", "p is no file, folder or link"),
    "a link out of it": ("ln -s ../.. p", "p is a link to ../.., which is not in the snapshot"),
    "a negative line": ("echo '!x' > .cotenantignore", "has no lines with !"),
    "too much packed": (
        "head -c 2000000 /dev/urandom > p",
        "1 MiB packed of 1 possible; the largest files: p",
    ),
    "too much to pack": ("truncate -s 5M p", "5 MiB of 4 possible; the largest files: p (5.0 MiB)"),
}


@pytest.mark.parametrize(("script", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_what_it_cannot_hold_is_refused(tmp_path: Path, script: str, says: str) -> None:
    top = make({"a": b"1"}, tmp_path / "top")
    subprocess.run(["sh", "-c", script], cwd=top, check=True)
    with pytest.raises(BadSubmission) as refused:
        pack(top)
    assert says in refused.value.message and refused.value.hint
    assert list((tmp_path / "packed").glob("*")) == [], "nothing is left"


def test_a_folder_without_git_says_what_else_there_is(tmp_path: Path) -> None:
    with pytest.raises(BadSubmission, match="not a git repository") as refused:
        pack(make({}, tmp_path / "top"), "git")
    assert "--snapshot copy" in refused.value.hint


# --- The command -------------------------------------------------------------------------------------


def test_the_command_means_the_packed_files(tmp_path: Path) -> None:
    top = repository({"train.py": b"", "sub": {"run.sh": b""}}, tmp_path / "top")
    for name in ("new.py", "data.csv", "python"):
        (top / name).write_text("")
    tree = pack(top, "git")

    def words(*argv: str) -> tuple[str, ...]:
        return words_in_tree(argv, top / "sub", tree)

    assert words("python", f"{top}/train.py", "--x", "../train.py") == (
        "python",
        "../train.py",
        "--x",
        "../train.py",
    )
    assert words(f"{top}/sub/run.sh") == ("./run.sh",)
    assert words("../python", "-c", "1") == (f"{top}/python", "-c", "1"), "an environment stays where it is"
    assert words("cat", f"{top}/data.csv", "/etc/hosts") == ("cat", f"{top}/data.csv", "/etc/hosts")
    for argv in (("python", "../new.py"), ("sh", f"{top}/new.py"), ("cat", "../data.csv")):
        with pytest.raises(BadSubmission, match="is not in the snapshot"):
            words(*argv)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSubmission, match="uptime changes while it is read"):
        packing._read(Path("/proc/uptime"), "uptime")


SCRIPTS = {
    "a script": ("train.sh", "#!/bin/sh\n#COTENANT --snapshot git\necho\n"),
    "a Slurm script": ("train.sbatch", "#!/bin/sh\n#SBATCH -o out/%j\n#COTENANT --snapshot git\necho\n"),
    "YAML": ("job.yaml", "command: sh train.sh\nsnapshot: git\n"),
}


@pytest.mark.parametrize(("name", "text"), SCRIPTS.values(), ids=SCRIPTS.keys())
def test_files_ask_for_one_and_are_then_the_copys(tmp_path: Path, name: str, text: str) -> None:
    tree: Tree = {"train.sh": b"#!/bin/sh\n", name: text.encode(), "out": {"kept": b""}}
    top = repository(tree, tmp_path / "top")
    where = Submitter(folder=top, environ={"PATH": os.environ["PATH"]}, snapshots=tmp_path / "packed")
    made = submission([str(top / name)], {}, where)
    launch = made.request.specs[0].launch
    assert launch.snapshot is not None and (tmp_path / "packed" / launch.snapshot.sha256).exists()
    assert launch.workdir == str(top) and launch.argv[-1] == ("train.sh" if "yaml" in name else name)
    assert launch.output in ("", "out/%j"), "below the copy, wherever that is"
    assert "it runs in its own copy of this tree (git " in made.notes[-1]


def test_a_tree_to_add_to_is_needed(tmp_path: Path) -> None:
    where = Submitter(folder=tmp_path, environ={"PATH": os.environ["PATH"]})
    flags = {"snapshot_add": read(BY_KEY["snapshot_add"], ("x",), "--snapshot-add")}
    with pytest.raises(BadSubmission, match="--snapshot-add alone"):
        submission(["ls"], flags, where, command_only=True)
