"""The fluid world: devices as a quantity that flows, jobs that run on any share of them.

    workload (work, speedup curve) -> rule (who gets which share) -> outcome, the same as of any simulation

PCS and the policies that it is compared with are published for this world: shares may be parts of a device,
a job may have any share at any moment, and neither a start nor a change costs anything (l = p = 0). We use it
to check our PCS against the published numbers to the second, to compare elastic policies, and because it is
quick enough for a search (`papers/pcs/preferences/`).

Rule: there is no engine here, and nothing of production. The engine gives whole devices to whole gangs,
starts attempts, waits for saves and keeps a ledger of tenants; a share of .37 devices is none of that, and a
ledger that could hold one would promise what no host can do. So this world has rules of its own (`rules.py`),
and what both worlds have in common, the division by classes, is in `papers/pcs/`. A result from here
says how a policy divides, never what that costs: `world/` does.

`play.py` is what happens when, `curves.py` how fast jobs are, `promised.py` what a job is told and how that
is kept, `simulate.py` which policies there are.
"""

# fmt: off
from cotenant.controller.papers.pcs.fluid.curves import fluid_workload, fluid_jobs
from cotenant.controller.papers.pcs.fluid.play import NEVER, FluidJob, Play, Rule, predicted_end_s
from cotenant.controller.papers.pcs.fluid.simulate import FLUID, POLICIES, simulate_fluid

__all__ = [
    "FLUID", "NEVER", "POLICIES", "FluidJob", "Play", "Rule", "fluid_workload", "fluid_jobs",
    "predicted_end_s", "simulate_fluid",
]
# fmt: on
