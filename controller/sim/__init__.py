"""The simulator: the engine and the policies of production, driven by a virtual clock over a trace.

    trace (file, or generated) -> workload (what arrives) -> simulate (one policy) -> outcome -> summary

Rule: nothing here decides. The world obeys the engine and says what happened; whatever a policy could
not know in production it cannot know here.

Packages: `traces/`, `world/` (what obeys), `results/` (what came of it), `past/` (a controller's own
journal).
"""
