"""Comparing policies for people: what is asked for, and the table of what came out.

The verbs `whatif` and `sim compare` and the page's simulations share it.
- `choices.py`: policies and workloads by name, what is wrong with them as a `Problem`.
- `table.py`: runs side by side, each measure in one unit.
- `journal.py`: a cluster's own days, read from its journal, and what to say beside the table.
"""
