"""Published systems, a folder each: for researchers who compare policies, beside those that a lab runs.

Nothing outside this folder imports it. Policies, placements, computations and simulated worlds come in by the
entry points of `pyproject.toml`, as those of any other package do; a verb is loaded by its name.
"""
