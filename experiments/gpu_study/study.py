"""The study of one GPU: MPS and time slices, bounds, warm start, exact resume, the hardware suite, a queue.

    python -m experiments.gpu_study.study [--slice N|NAME,...] [--out FOLDER] [--device cuda|cpu]
                                          [--minutes 8] [--rehearse] [--list]

Slices of eight minutes at most, in the order of what they decide; each leaves `FOLDER/NAME.json`. Started
again, the study makes what is missing and goes on where a slice was cut off. It needs neither network nor
root, and ends in `FOLDER/page.md`. `--device cpu` rehearses on a CPU slot, `--rehearse` in short slices. What
is asked, and what would refute us, stands in preregistration.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from experiments.gpu_study import bounds, queues
from experiments.gpu_study.page import write_page
from experiments.shared.live.run import WentWrong
from hwtests import pairs, suite, summary
from hwtests.command import run_command
from hwtests.slices import FAULTS, Outcome, Run, Slice

MEMORY_MIB_MIN: Final = 15_000
"""A GPU sold with 16 GB shows a little less to its driver."""


def stands_for(name: str) -> Callable[[Run], str]:
    """A rehearsal runs one slice of those that differ in a number or a name alone."""
    return lambda run: f"{name} rehearses the same code" if run.rehearse else ""


OF_SUITE: Final = {each.name: each for each in suite.SLICES}
SLICES: Final = (
    OF_SUITE["mps"],
    *pairs.SLICES,
    OF_SUITE["resume"],
    OF_SUITE["warm-start"],
    Slice("bound-1.10", "Does a bound of 1.10 hold beside a guest?", partial(bounds.list_bounds, 1.10)),
    Slice("bound-none", "What does the guest do without a bound?", partial(bounds.list_bounds, 0.0),
          stands_for("bound-1.10")),
    Slice("queue-cotenant", "How long do 40 jobs take under cotenant?",
          partial(queues.list_queue, "cotenant")),
    Slice("queue-fifo", "The same under fifo?", partial(queues.list_queue, "fifo"),
          stands_for("queue-cotenant")),
    Slice("queue-castor", "The same under castor?", partial(queues.list_queue, "castor"),
          stands_for("queue-cotenant")),
    Slice("bound-1.05", "Does a bound of 1.05 hold?", partial(bounds.list_bounds, 1.05),
          stands_for("bound-1.10")),
    OF_SUITE["numbers"],
    OF_SUITE["processes"],
)  # fmt: skip


def write_pages(run: Run, machine: Mapping[str, str], found: Mapping[str, Outcome]) -> None:
    text = write_page(found, [each.name for each in SLICES], machine, is_short=run.rehearse)
    (run.folder / "page.md").write_text(text, encoding="utf-8")
    pairs.write_tables(run)
    if rows := suite.read_rows(run.folder):
        text = summary.write_page(rows, machine, summary.suite_parts())
        (run.folder / "hardware.md").write_text(text, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        __doc__ or "",
        "gpu-study",
        SLICES,
        write_pages,
        Path("gpu-study"),
        argv=argv,
        memory_mib_min=MEMORY_MIB_MIN,
        faults=(*FAULTS, WentWrong),
    )


if __name__ == "__main__":
    sys.exit(main())
