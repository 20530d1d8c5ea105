"""Start of a verb: `cotenant queue` and others beside an empty interpreter.

    python bench/verbs.py [--rounds 30] [--write PAGE]

Each way takes its turn in each round, so that the machine's mood hits all. A controller of its own has three
held jobs. A ratio is a median over that of `python -c pass` in the same run, of the time that passes and of
the processor's, which other work on the machine disturbs less. Bytecode is there, as pip writes
it; `--without-bytecode` shows an editable install under PYTHONDONTWRITEBYTECODE, which compiles every module
of ours at every start. What nobody can go below: the interpreter, and the libraries that the wire, the socket
and the command line stand on.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import machine

COTENANT = (sys.executable, "-m", "cotenant.controller.cli.main")
PASS = "python -c pass"
LIBRARIES = "import msgspec, msgpack, zmq, click"
WAYS: Mapping[str, tuple[str, ...]] = {
    PASS: (sys.executable, "-c", "pass"),
    f"python -c '{LIBRARIES}'": (sys.executable, "-c", LIBRARIES),
    "cotenant --help": (*COTENANT, "--help"),
    "cotenant queue": (*COTENANT, "queue"),
    "cotenant queue -o json": (*COTENANT, "queue", "-o", "json"),
    "cotenant submit": (*COTENANT, "submit", "--hold", "--", "true"),
    "cotenant policy list": (*COTENANT, "policy", "list"),
    "cotenant sim trace list": (*COTENANT, "sim", "trace", "list"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--without-bytecode", action="store_true")
    parser.add_argument("--write", metavar="PAGE")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        took_s = measured(Path(folder), flags.rounds, flags.without_bytecode)
    page = report(took_s, flags.rounds, "none of ours" if flags.without_bytecode else "there")
    print(page)
    if flags.write:
        Path(flags.write).write_text(page)


def measured(folder: Path, rounds: int, without_bytecode: bool) -> dict[str, list[tuple[float, float]]]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environ |= {f"XDG_{kind}": str(folder) for kind in ("RUNTIME_DIR", "STATE_HOME", "CONFIG_HOME")}
    environ |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    if without_bytecode:
        environ |= {"PYTHONDONTWRITEBYTECODE": "1"}
    words = (sys.executable, "-m", "cotenant.controller", "--state-dir", str(folder / "state"))
    with subprocess.Popen(
        words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as controller:
        assert controller.stdout is not None
        assert controller.stdout.readline().startswith(b"ready"), "the controller has not started"
        try:
            for _ in range(3):
                once(WAYS["cotenant submit"], environ)
            for way in WAYS.values():
                once(way, environ)
            took_s: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
            for _ in range(rounds):
                for name, way in WAYS.items():
                    took_s[name].append(once(way, environ))
        finally:
            controller.terminate()
    return took_s


def once(words: tuple[str, ...], environ: Mapping[str, str]) -> tuple[float, float]:
    """The time that passed, and the processor's, in seconds."""
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(words, env=environ, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    took_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def report(took_s: Mapping[str, list[tuple[float, float]]], rounds: int, bytecode: str) -> str:
    medians_s = {
        name: [statistics.median(times) for times in zip(*each, strict=True)] for name, each in took_s.items()
    }
    empty_cpu_s = medians_s[PASS][1]

    def times(name: str) -> str:
        return f"{medians_s[name][1] / empty_cpu_s:.1f}"

    lines = [
        "# Start of a verb",
        "",
        (
            f"`cotenant queue` takes {times('cotenant queue')} times the processor time of an empty "
            f"interpreter, `cotenant --help` {times('cotenant --help')} times."
        ),
        "",
        "| way | median, ms | CPU, ms | times an empty interpreter |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, (median_s, cpu_s) in medians_s.items():
        lines.append(f"| `{name}` | {1e3 * median_s:.0f} | {1e3 * cpu_s:.0f} | {cpu_s / empty_cpu_s:.2f} |")
    command = f"`python bench/verbs.py --rounds {rounds}`"
    return "\n".join([*lines, "", f"{command}; bytecode: {bytecode}.", machine.sentences(), ""])


if __name__ == "__main__":
    main()
