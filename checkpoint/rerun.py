"""`python -m cotenant.checkpoint SCRIPT ARGS`: a script that goes on from a checkpoint.

Rule: standard library only; this runs before the script's torch. The script is compiled from its own
source, with marks where it was left (`marks.py`). Arguments and `__main__` are those of `python SCRIPT
ARGS`. A script that begins at its beginning never comes by here.
"""

from __future__ import annotations

import builtins
import os
import sys
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from cotenant.checkpoint.disk import layout
from cotenant.checkpoint.guard import SAVING
from cotenant.checkpoint.marks import MarkedImports, Marks, SourceMarks, compile_marked
from cotenant.checkpoint.talk.protocol import RESUME_NONE, JobEnvironment

LOOPS: Final = "loops"
"""Among the facts of a manifest: file and line of each loop in which the script was left."""
BEGAN: Final = "began"
"""Among them: file and line of the loop at which the first picture was taken."""
CALLS: Final = "calls"
"""Among them: file and line of each call in progress, from the outermost of these loops to the innermost."""
FOLDERS: Final = "folders"
"""Among them: the folders that were made before the loop."""
WRITTEN: Final = "written"
"""Among them: the files that the loop has written."""
SEEDS: Final = "seeds"
"""Among them: what the script seeded its generators by, before the loop."""
SOURCES: Final = "sources"
"""Among them: the script's own files, each with a number for its text."""
ENV_RERUN: Final = "COTENANT_RERUN"
"""Set for the process that is started anew, so that this happens once."""


def facts_of_all() -> Iterator[Mapping[str, Any]]:
    """The facts of all checkpoints that this attempt may go on from, the newest first."""
    env = JobEnvironment.read(os.environ)
    if env.root is None or env.resume == RESUME_NONE:
        return
    for name in layout.names_newest_first(env.root, env.attempt):
        try:
            yield layout.read_manifest(env.root / name).facts
        except layout.CheckpointError:
            continue  # Whoever reads it says what is wrong with it.


def marks_of_newest() -> Marks:
    """The loops that this attempt may have to take up; empty where there are none."""
    marks: Marks = {}
    for facts in facts_of_all():
        for word, places in ((LOOPS, facts.get(LOOPS)), (CALLS, facts.get(CALLS)), (LOOPS, facts.get(BEGAN))):
            for file, line in places or ():
                place = marks.get(file, SourceMarks(frozenset(), frozenset()))
                marks[file] = place._replace(**{word: getattr(place, word) | {line}})
    return marks


def first_loops() -> set[tuple[str, int]]:
    """File and line of each loop at which earlier attempts took their first picture."""
    return {(file, line) for facts in facts_of_all() for file, line in facts.get(BEGAN) or ()}


def folders_of_newest() -> set[str]:
    """The folders that earlier attempts made before their loops."""
    return {each for facts in facts_of_all() for each in facts.get(FOLDERS) or ()}


def steps_of_newest() -> int | None:
    """The s with which a checkpoint was saved that this attempt may go on from; None: there is none."""
    return next((facts.get("accumulation_steps") for facts in facts_of_all()), None)


def written_of_newest() -> set[str]:
    """The files that the loops of earlier attempts have written."""
    return {each for facts in facts_of_all() for each in facts.get(WRITTEN) or ()}


def edited_since(sources: Mapping[str, int]) -> list[str]:
    """Which of these files read otherwise now."""
    return [file for file, number in sources.items() if number_of(file) != number]


def number_of(file: str) -> int:
    """A number for a file's text; -1: it cannot be read."""
    try:
        with open(file, "rb") as source:
            return zlib.crc32(source.read())
    except OSError:
        return -1


def edited_on_the_way() -> list[str]:
    """Which files with a loop or call that is to be taken up were edited since: their lines may be others."""
    facts = next(facts_of_all(), {})
    marked = {file for word in (LOOPS, CALLS, BEGAN) for file, _ in facts.get(word) or ()}
    return edited_since({file: n for file, n in (facts.get(SOURCES) or {}).items() if file in marked})


def mark_script() -> Callable[[bytes, str], Any] | None:
    """Mark the loops that this attempt is to take up: in modules as they are imported, and in the script
    itself by starting this interpreter anew. Where a script is run by a process that was there before, the
    function that makes its code; None, if there is nothing to mark."""
    marks = marks_of_newest()
    if not marks:
        return None
    if os.environ.pop(ENV_RERUN, ""):
        return None
    sys.meta_path.insert(0, MarkedImports(marks))
    if hasattr(sys.modules.get("__main__"), "__file__"):
        return SAVING.door(lambda source, file: compile_marked(source, file, marks))
    words = _original_words()
    at = None if words is None else _first_of_script(words)
    if words is not None and at is not None and os.path.abspath(words[at]) in marks:
        os.environ[ENV_RERUN] = "1"
        here = [sys.executable, *words[1:at], "-m", "cotenant.checkpoint", *words[at:]]
        os.execv(sys.executable, here)
    return None


def _original_words() -> list[str] | None:
    """The command that started this interpreter."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            words = [os.fsdecode(each) for each in file.read().split(b"\0")[:-1]]
    except OSError:
        return None
    return words


def _first_of_script(words: Sequence[str]) -> int | None:
    """Where a script begins among the words of an interpreter's command; None: it runs a module or text."""
    at = 1
    while at < len(words):
        word = words[at]
        if word == "-m":
            return None
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            at += 2
        elif word.startswith("-") and word != "-":
            if "c" in word and not word.startswith("--"):
                return None
            at += 1
        else:
            return at if word != "-" else None
    return None


def run(words: Sequence[str], marks: Marks) -> None:
    """Run the script as `__main__`."""
    sys.meta_path.insert(0, MarkedImports(marks))
    file = os.path.abspath(words[0])
    sys.argv = list(words)
    sys.path[0] = os.path.dirname(os.path.realpath(file))
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=file, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main
    with open(file, "rb") as source:
        code = SAVING.run(compile_marked, source.read(), file, marks)
    exec(code, main.__dict__)
