"""The command itself: help, laziness, completion, and verbs that all work."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cotenant.controller.cli.verbs import BY_NAME, IMPORTED_ALONE, Verb, verb_command
from cotenant.controller.present.screen import table
from cotenant.controller.present.tables import Column
from cotenant.controller.system.files import output, write_output
from tests.building.limits import within_s

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant

VERBS = list(BY_NAME.values())
LOADED = """
import json, sys
from cotenant.controller.cli.main import main
main({words})
print(json.dumps(list(sys.modules)))
"""


def modules_after(*words: str, at: Path) -> set[str]:
    """What a fresh interpreter has imported after a command line."""
    folders = {"XDG_RUNTIME_DIR": str(at), "XDG_STATE_HOME": str(at)}
    environ = {**os.environ, **folders, "COTENANT_CONFIG": os.devnull}
    code = LOADED.format(words=list(words))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


OF_A_QUESTION_ABOUT_JOBS = (
    "domain.capabilities", "domain.cluster", "domain.container", "domain.eta", "domain.faces",
    "domain.idling",
    "domain.ids", "domain.printed",
    "domain.indicators", "domain.job", "domain.job_parts", "domain.job_spec", "domain.placement",
    "domain.lifecycle", "domain.notices", "domain.outcomes", "domain.owned", "domain.perf", "domain.profiles",
    "domain.lengths", "domain.reasons", "domain.resumes",
    "domain.settings", "domain.texts",
    "domain.throughput", "wire.clients", "wire.clients.base", "wire.clients.jobs",
    "wire.clients.submissions", "wire.codec", "wire.route", "wire.times", "wire.views",
)  # fmt: skip
"""A question needs no module of other questions, of agents, or of deciding."""


def test_help_imports_next_to_nothing(tmp_path: Path) -> None:
    heavy = {"click", "rich", "zmq", "msgspec", "msgpack", "yaml", "numpy", "asyncio"}
    assert not modules_after("--help", at=tmp_path) & heavy


def test_queue_imports_what_it_needs(tmp_path: Path) -> None:
    heavy = {"rich", "pydantic", "yaml", "numpy", "asyncio", "psutil", "torch", "cotenant.controller.engine"}
    loaded = modules_after("queue", "--json", at=tmp_path)
    assert not loaded & heavy
    assert not loaded & {"csv", "hashlib", "statistics"}, "few verbs need them"
    ours = {
        name
        for name in loaded
        if name.startswith(("cotenant.controller.domain.", "cotenant.controller.wire."))
    }
    assert ours <= {f"cotenant.controller.{name}" for name in OF_A_QUESTION_ABOUT_JOBS}


@pytest.mark.parametrize("part", IMPORTED_ALONE, ids=lambda part: part.name)
def test_a_part_that_is_imported_alone_needs_no_numpy_and_is_one_of_its_verb(
    part: Verb, tmp_path: Path
) -> None:
    words = part.name.split()
    for more in ((), ("--json",), ("--help",)):
        loaded = modules_after(*words, *more, at=tmp_path)
        assert not loaded & {"numpy", "zmq", "asyncio", "cotenant.controller.sim"}
    whole: Any = verb_command(BY_NAME[words[0]])
    for word in words[1:]:
        whole = whole.commands[word]
    alone = verb_command(part)
    assert (alone.help, [each.name for each in alone.params]) == (
        whole.help,
        [each.name for each in whole.params],
    )


def test_the_screen_of_top_is_imported_only_to_be_shown(tmp_path: Path) -> None:
    for words in (("--help",), ("top", "--help"), ("top", "--once")):
        assert not modules_after(*words, at=tmp_path) & {"rich", "asyncio"}


def test_help_lists_every_verb_with_one_line(cotenant: Cotenant) -> None:
    for words in ((), ("--help",), ("-h",), ("help",)):
        result = cotenant(*words)
        assert result.code == 0
        listed = {line.split()[0] for line in result.out.splitlines() if line.startswith("  ")}
        assert set(BY_NAME) <= listed
        assert max(map(len, result.out.splitlines())) <= 80


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_has_help_with_an_example(cotenant: Cotenant, verb: Verb) -> None:
    result = cotenant(verb.name, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: cotenant {verb.name}")
    parts = "" if verb.name != "policy" else cotenant("policy", "set", "--help").out
    assert f"  cotenant {verb.name}" in result.out.partition("\n")[2] + parts
    examples = result.out.partition("For example:")[2].partition("\nOptions:")[0].splitlines()
    joined = [line for line in examples if re.search(rf"\S +cotenant {verb.name}( |$)", line)]
    assert joined == [], "an example has a line of its own"
    assert cotenant("help", verb.name).out == result.out


PAGES = (("show",), ("submit",), ("pairs",), ("sim", "run"), ("policy", "set"), ("profile", "forget"))
"""Arguments of every shape: needed, left out, several, with brackets of their own."""


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_a_help_page_speaks_of_no_python_types(cotenant: Cotenant, words: tuple[str, ...]) -> None:
    page = cotenant(*words, "--help").out
    assert not re.findall(r"<\w+.*>|[{}]|\[\[", re.sub(r"\{\w+\}", "", page))


@pytest.mark.parametrize("words", [("sim",), ("sim", "trace"), ("predictor",), ("profile",)], ids=" ".join)
def test_a_verb_with_parts_alone_says_what_they_are_in_whole_sentences(
    cotenant: Cotenant, words: tuple[str, ...]
) -> None:
    result = cotenant(*words)
    assert (result.code, result.err) == (0, "")
    assert result.out == cotenant(*words, "--help").out
    parts = result.out.partition("Commands:\n")[2]
    assert parts
    assert not parts.rstrip().endswith("...")
    assert max(map(len, parts.splitlines())) <= 80


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_is_where_the_table_says(verb: Verb) -> None:
    module = importlib.import_module(verb.full_module)
    assert hasattr(module, verb.name.replace("-", "_"))
    assert verb_command(verb) is not None


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_back(shell: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "cotenant.controller.cli.main", "completion", shell]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "_COTENANT_COMPLETE=complete_" in done.stdout
    assert "cotenant" in done.stdout


COMPLETIONS = {
    "po": {"policy"},
    "nodes dr": {"drain"},
    "queue -o js": {"json", "jsonl"},
    "submit --batch": {"--batch-size"},
}


@pytest.mark.parametrize(("line", "wanted"), COMPLETIONS.items())
def test_completion_answers(line: str, wanted: set[str], tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(tmp_path),
        "COTENANT_CONFIG": os.devnull,
        "_COTENANT_COMPLETE": "complete_bash",
        "COMP_WORDS": f"cotenant {line}",
        "COMP_CWORD": str(len(line.split())),
    }
    words = [sys.executable, "-m", "cotenant.controller.cli.main"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environ)
    assert set(done.stdout.split()) == wanted


ANSWERS = {
    ("zsh", "nodes dr"): ["plain", "drain", "Give a host no new work. What runs there goes on."],
    ("fish", "sim compare x --policies fifo,srtf-"): ["plain,fifo,srtf-full"],
    ("bash", "submit tr"): [],
    ("zsh", "submit tr"): ["file", "tr", "_"],
    ("fish", "submit tr"): ["file,tr"],
}
"""The lines that the shell's script reads; `file` is for the shell to complete."""


@pytest.mark.parametrize(("asked", "lines"), ANSWERS.items())
def test_each_shell_gets_what_its_script_reads(asked: tuple[str, str], lines: list[str]) -> None:
    shell, line = asked
    words = line.split()
    environ = {
        **os.environ,
        "COTENANT_CONFIG": os.devnull,
        "_COTENANT_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": f"cotenant {line}",
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words)),
    }
    command = [sys.executable, "-m", "cotenant.controller.cli.main"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    assert (done.stdout.split("\n")[:-1], done.stderr) == (lines or [""], "")


def test_a_completion_script_of_another_version_completes_nothing_and_says_nothing() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COMP_")}
    environ["_COTENANT_COMPLETE"] = "complete_zsh"
    command = [sys.executable, "-m", "cotenant.controller.cli.main"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("logs", "7", "-r", "-1"), "--rank must be at least 0"),
        (("logs", "7", "--rank", "1.0"), "--rank must be a whole number, got '1.0'"),
        (("logs", "7", "--rank", "٣"), "--rank must be a whole number, got '٣'"),
        (("top", "-d", "٣"), "--every must be a number, got '٣'"),
        (("top", "-d", "0.1"), "--every must be at least 0.2"),
        (("top", "--every", "nan"), "--every must be a number, got 'nan'"),
        (("sim", "run", "x", "--load-scale", "inf"), "--load-scale must be a number, got 'inf'"),
        (
            ("sim", "run", "x", "--policy", "fifo", "--xi", "foo"),
            "--xi must be one of 'learned', 'measured', got 'foo'",
        ),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_a_wrong_value_is_said_with_the_flags_long_name(
    words: tuple[str, ...], said: str, cotenant: Cotenant
) -> None:
    result = cotenant(*words)
    assert (result.code, result.err.partition(";")[0]) == (2, f"error[usage]: {said}")


def test_completing_jobs_without_a_controller_is_silent(at_home: Path) -> None:
    from cotenant.controller.cli.frame.completing import complete_job

    assert complete_job("") == []


def test_a_reader_that_leaves_is_no_error_and_the_exit_code_says_so(tmp_path: Path) -> None:
    code = (
        "import sys; from cotenant.controller.cli.main import main; sys.exit(main(['config', '-o', 'wide']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=within_s(60))
    assert (process.returncode, err) == (141, b"")


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, 143, "terminated\n")],
)
def test_a_signal_ends_a_verb_with_one_word_and_its_exit_code(
    number: signal.Signals, code: int, word: str, cotenant: Cotenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(tomllib, "loads", lambda _: signal.raise_signal(number))  # While files are read.
    result = cotenant("config")
    assert (result.code, result.out, result.err) == (code, "", word)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text("old")

    def cut_off() -> None:
        with output(path) as beside:
            beside.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut_off()
    assert (path.read_text(), [each.name for each in tmp_path.iterdir()]) == ("old", ["model.json"])
    link = tmp_path / "link.json"
    link.symlink_to(path)
    write_output(link, b"new")
    assert (link.is_symlink(), path.read_text()) == (True, "new")
    write_output(Path(os.devnull), b"gone")
    assert Path(os.devnull).is_char_device()


def test_a_wide_character_takes_two_columns() -> None:
    columns = (Column("NAME", lambda row: row, limit=6), Column("X", lambda row: "x"))
    lines = table(columns, ["ab", "日本語", "日本語です", "e\u0301"], 60).splitlines()
    assert lines == ["NAME    X", "ab      x", "日本語  x", "日本…   x", "e\u0301       x"]


def test_a_locale_that_cannot_write_a_name_still_shows_it(tmp_path: Path) -> None:
    """JSON is UTF-8 everywhere."""
    (tmp_path / "c.toml").write_text('[agent]\nhost = "日本"\n', encoding="utf-8")
    plain = {"PYTHONIOENCODING": "ascii", "COTENANT_CONFIG": str(tmp_path / "c.toml")}
    words = [sys.executable, "-m", "cotenant.controller.cli.main", "config", "agent.host", "-o"]
    for form, shown in (("table", b"\\u65e5\\u672c"), ("json", "日本".encode())):
        done = subprocess.run([*words, form], env={**os.environ, **plain}, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert shown in done.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_output_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "cotenant.controller.cli.main", "--help"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error[failed]: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_the_caller_closed_is_no_error(closed: str) -> None:
    command = f'exec "$0" -m cotenant.controller.cli.main config -o id {closed}'
    done = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (closed == "2>&-")


def test_version_flag(cotenant: Cotenant, at_home: Path) -> None:
    assert cotenant("--version").out.startswith("cotenant ")
