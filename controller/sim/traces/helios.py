"""SenseTime's Helios: `cluster_log.csv` of S-Lab-System-Group/HeliosData (Hu et al., SC '21).

Rule: `duration` is the source's own (end - start, in seconds); submission is counted from the file's first.
"""

from __future__ import annotations

from cotenant.controller.sim.traces.drafting import CLOCK_TIME, Draft, clock_s, finish, from_first
from cotenant.controller.sim.traces.table import table
from cotenant.controller.sim.traces.trace import Labels, Trace

REQUIRED = ("submit_time", "duration", "gpu_num")
SOURCE = "SenseTime Helios 2020 (Hu et al., SC '21)"


def read_helios(text: str, *, name: str) -> Trace:
    """Raises TraceProblem where the text is no Helios log, or no job is left."""
    jobs = table(text, name, wanted=("job_id", "user", "vc", "state", *REQUIRED), required=REQUIRED)
    return finish(
        Draft(
            name=name,
            source=SOURCE,
            licence="CC-BY-4.0",
            lines=jobs.lines,
            submit_s=from_first(jobs.parsed("submit_time", clock_s, CLOCK_TIME)),
            duration_s=jobs.numbers("duration"),
            gpus=jobs.numbers("gpu_num", negative=False),
            job_ids=jobs.unique("job_id") if "job_id" in jobs else (),
            user=Labels.of(jobs.text("user")),
            vc=Labels.of(jobs.text("vc")),
            state=Labels.of(jobs.text("state")),
            excluded={},
            notes=[],
        )
    )
