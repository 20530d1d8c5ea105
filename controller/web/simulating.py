"""The child that simulates this cluster's last days for the page: `whatif`, with its progress line by line.

Rule: one JSON object per line on stdout: how far it is, and at last the table or what went wrong. It ends
when stdin does, with the page's server.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, Final

from cotenant.controller.present.problem import Problem
from cotenant.controller.sim import TaskProgress, run_all
from cotenant.controller.sim.past import what_if
from cotenant.controller.training import compute
from cotenant.controller.whatif import table as sim_table
from cotenant.controller.whatif.choices import chosen_policies, convert_errors
from cotenant.controller.whatif.journal import footnotes, headline, read
from cotenant.controller.wire import utc

NICENESS: Final = 10
"""Jobs and the controller come first."""
PAIRS: Final = "gavel-v100"
"""As `whatif` by default."""


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m cotenant.controller.web.simulating")
    asked.add_argument("--journal", required=True)
    asked.add_argument("--policies", default="")
    asked.add_argument("--since", default="")
    asked.add_argument("--add-gpus", type=int, default=0)
    words = asked.parse_args()
    os.nice(NICENESS)
    threading.Thread(target=end_with_stdin, daemon=True).start()
    try:
        say(simulate_journal(words.journal, words.policies, words.since, words.add_gpus))
    except Problem as problem:
        say({"wrong": problem.message, "hint": problem.hint})
        return 1
    return 0


def end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def say(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def simulate_journal(journal: str, policies: str, since: str, add_gpus: int) -> dict[str, Any]:
    """Simulates what a journal recorded, under each of the policies. Raises Problem."""
    choices = chosen_policies(policies) if policies else ()
    say({"doing": "reading the journal"})
    record = read(Path(journal), since, named=False)
    with convert_errors():
        tasks = what_if.replay_tasks(record, choices, pairs=PAIRS, seed=0, add_gpus=add_gpus)
    if not tasks:
        raise Problem("usage", f"{record.setting.policy} is not available here", "name other policies")
    finished, total = [0] * len(tasks), sum(len(task.workload) for task in tasks)

    def tell(progress: TaskProgress) -> None:
        finished[progress.task] = progress.finished
        doing = f"simulating {tasks[progress.task].label}"
        say({"doing": doing, "finished": sum(finished), "total": total})

    runs = run_all(tasks, workers=1, keep=True, report=tell, compute=compute)
    times = [utc(wall_s) for wall_s in (record.begin_wall_s, record.end_wall_s)]
    value = what_if.document(record, runs, pairs=PAIRS, begin=times[0], end=times[1])
    columns, rows = sim_table.laid_out([value["actual"], *value["runs"]], wide=False)
    return {
        "headline": headline(record),
        "notes": [" ".join(line.split()) for line in footnotes(value, record, runs)],
        "titles": [column.title for column in columns],
        "rows": [[column.text(row).strip() for column in columns] for row in rows],
    }


if __name__ == "__main__":
    sys.exit(main())
