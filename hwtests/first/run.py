"""The first nine minutes on one GPU: questions in the order of what they decide, each with a time limit.

    python -m hwtests.first.run --out FOLDER [--minutes 9] [--allow-faults] [--only NAME,...] [--list]
                                [--device cuda|cpu] [--default-pipe FOLDER]

After every question FOLDER/results.json has all facts and FOLDER/page.md is made anew. Started again with the
same folder, it asks what has no answer yet. It needs neither root nor a network, and changes no setting of
the GPU. `--allow-faults` adds the last question, which crashes the GPU's clients on purpose: the GPU may need
a reset. `--device cpu` rehearses the questions that need torch on a CPU slot.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from hwtests.first.install import KIT
from hwtests.first.machine import boot_id
from hwtests.first.notes import read
from hwtests.first.page import write_page
from hwtests.first.place import Place, write_place
from hwtests.first.processes import GRACE_S, adopt_orphans, run
from hwtests.first.questions import (
    BY_NAME,
    QUESTIONS,
    TOTAL_S_MAX,
    Asked,
    Question,
    refusals,
    why_not,
)

TRIES_MAX: Final = 2
"""A question under which the script or the machine went down twice is not asked a third time."""
WHY_CHARS: Final = 400
LEAST_S: Final = 3.0
"""No question is begun with less."""


class Folder:
    """Where the results are. Every write replaces a whole file, so that a crash leaves the one before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "raw").mkdir(parents=True, exist_ok=True)

    def write(self, name: str, text: str) -> None:
        partial = self.path / f"{name}.new"
        partial.write_text(text, encoding="utf-8")
        partial.replace(self.path / name)

    def asked(self) -> dict[str, Asked]:
        """What is over, by question."""
        path = self.path / "results.json"
        kept: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
        return {name: Asked(**values) for name, values in kept.items() if name in BY_NAME}

    def keep(self, asked: dict[str, Asked], device: str) -> None:
        ordered = {each.name: asked[each.name]._asdict() for each in QUESTIONS if each.name in asked}
        self.write("results.json", json.dumps(ordered, indent=1))
        self.write("page.md", write_page(asked, device))

    def forget(self, asked: dict[str, Asked], *names: str) -> None:
        for name in names:
            asked.pop(name, None)
            (self.path / "raw" / f"{name}.begun").unlink(missing_ok=True)

    def begin(self, name: str) -> int:
        """Note that it is asked now; how often it was begun."""
        path = self.path / "raw" / f"{name}.begun"
        tries = int(path.read_text()) + 1 if path.exists() else 1
        self.write(f"raw/{name}.begun", str(tries))
        return tries


def main(argv: Sequence[str] | None = None) -> int:
    began_s = time.monotonic()
    options = parse(argv)
    if options.list:
        print("\n".join(f"{each.limit_s:3.0f} s  {each.name:<15} {each.asks}" for each in QUESTIONS))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    adopt_orphans()
    folder = Folder(options.out.resolve())
    ends_s = began_s + options.minutes * 60

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began_s:5.0f} s  {text}", flush=True)

    asked = folder.asked()
    if "machine" in asked and asked["machine"].facts.get("boot") != boot_id():
        tell("these results began on another machine, or before a boot: what it is, is asked anew")
        folder.forget(asked, "machine", "install")
    folder.keep(asked, options.device)
    for question in options.only:
        before = asked.get(question.name)
        if before is not None and (
            before.state != "not asked" or why_not(question, needs_of(asked, options))
        ):
            tell(f"{question.name}: {before.state} before")
            continue
        left_s = ends_s - time.monotonic() - GRACE_S
        if left_s < LEAST_S:
            tell("the time is over; start it again with the same folder to go on")
            break
        asked[question.name] = one = ask(question, folder, asked, options, min(question.limit_s, left_s))
        folder.keep(asked, options.device)
        tell(f"{question.name}: {one.state}, {one.took_s:.1f} s{f': {one.why}' if one.why else ''}")
    tell(f"written: {folder.path / 'page.md'}")
    return 0


def needs_of(asked: dict[str, Asked], options: argparse.Namespace) -> dict[str, str]:
    """What is refused here. Faults may be allowed in a later start."""
    refused = refusals(asked)
    if options.allow_faults:
        refused.pop("faults", None)
    return refused


def ask(
    question: Question, folder: Folder, asked: dict[str, Asked], options: argparse.Namespace, limit_s: float
) -> Asked:
    """Ask one question, unless something it needs was refused before."""
    refused = needs_of(asked, options)
    if options.device == "cpu" and "torch" in question.needs and "mps" not in question.needs:
        refused.pop("gpu", None)
    if problem := why_not(question, refused):
        return Asked("not asked", problem)
    if folder.begin(question.name) > TRIES_MAX:
        return Asked("failed", f"the script was cut off {TRIES_MAX} times while it was asked")
    notes, log = (folder.path / "raw" / f"{question.name}.{kind}" for kind in ("jsonl", "log"))
    notes.unlink(missing_ok=True)
    place = Place(
        folder.path,
        str(asked["machine"].facts.get("uuid", "")) if "machine" in asked else "",
        options.default_pipe,
        options.device,
        options.allow_faults,
    )
    own = interpreter(question)
    words = [own, "-m", "hwtests.first.ask", question.name, write_place(place), str(notes), str(os.getpid())]
    ended = run(words, environment(own), KIT, log, limit_s)
    facts = read(notes)
    took_s = round(ended.took_s, 1)
    if ended.code is None and limit_s < question.limit_s:
        return Asked(
            "not asked", f"the time of the script was over after {limit_s:.0f} s of it", took_s, facts
        )
    if ended.code is None:
        return Asked("cut off", f"after {limit_s:.0f} s", took_s, facts)
    if ended.code:
        lines = log.read_text(errors="replace").strip().splitlines()
        return Asked("failed", (lines[-1] if lines else f"exit {ended.code}")[:WHY_CHARS], took_s, facts)
    return Asked("over", "", took_s, facts)


def interpreter(question: Question) -> str:
    """The kit's own for what needs cotenant; for all else, and in a working tree, this one."""
    own = KIT / ".venv" / "bin" / "python"
    is_kit = (KIT / "wheels").is_dir() and own.exists()
    return str(own) if is_kit and {"product", "torch"} & set(question.needs) else sys.executable


def environment(python: str) -> dict[str, str]:
    """Of a question; with the kit's interpreter no path of the shell's, which would come before the kit's."""
    hidden = () if python == sys.executable else ("PYTHONPATH", "PYTHONHOME")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    digits = KIT / "digits.csv.gz"
    return env | ({"DEMO_DIGITS": str(digits)} if digits.exists() else {})


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu-first", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-first"), metavar="FOLDER")
    parser.add_argument(
        "--minutes", type=float, default=TOTAL_S_MAX / 60, help="for all that is asked now (9)"
    )
    parser.add_argument("--allow-faults", action="store_true", help="ask the last question as well")
    parser.add_argument("--only", default="", metavar="NAME,...", help="these questions (see --list)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--default-pipe", default="/tmp/nvidia-mps", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true", help="list the questions and leave")
    options = parser.parse_args(argv)
    wanted = options.only.split(",") if options.only else list(BY_NAME)
    if unknown := sorted(set(wanted) - set(BY_NAME)):
        parser.error(f"no such question: {', '.join(unknown)}; see --list")
    options.only = [each for each in QUESTIONS if each.name in wanted]
    return options


if __name__ == "__main__":
    sys.exit(main())
