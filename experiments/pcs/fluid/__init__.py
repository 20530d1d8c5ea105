"""The fluid world: devices as a quantity that flows, jobs that run on any share of them.

    workload (work, speedup curve) -> rule (who gets which share) -> outcome, the same as of any simulation

PCS and the policies that it is compared with are published for this world: shares may be parts of a device,
a job may have any share at any moment, and neither a start nor a change costs anything (l = p = 0). We use it
to check our PCS against the published numbers to the second, to compare elastic policies, and because it is
quick enough for long searches (`window.py`).

    python -m experiments.pcs.fluid philly/0e4a51 fifo srsf afs-l pcs:config=pred.json

Rule: there is no engine here, and nothing of production. The engine gives whole devices to whole gangs,
starts attempts, waits for saves and keeps a ledger of tenants; a share of .37 devices is none of that, and a
ledger that could hold one would promise what no host can do. So this world has rules of its own (`rules.py`),
and what both worlds have in common, the division by classes, is in the product's `papers/pcs/wfq.py`. A
result from here says how a policy divides, never what that costs.

`play.py` is what happens when, `curves.py` and `speedup.py` how fast jobs are, `promised.py` what a job is
told and how that is kept, `simulate.py` which policies there are.
"""

# fmt: off
from experiments.pcs.fluid.curves import fluid_workload, fluid_jobs
from experiments.pcs.fluid.play import NEVER, FluidJob, Play, Rule, predicted_end_s
from experiments.pcs.fluid.simulate import POLICIES, FluidResult, policy_named, simulate_fluid
from experiments.pcs.fluid.speedup import Speedup
from experiments.pcs.fluid.window import FluidWindow

__all__ = [
    "NEVER", "POLICIES", "FluidJob", "FluidResult", "FluidWindow", "Play", "Rule", "Speedup",
    "fluid_workload", "fluid_jobs", "policy_named", "predicted_end_s", "simulate_fluid",
]
# fmt: on
