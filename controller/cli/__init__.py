"""The `cotenant` command: one module per verb, in packages as `cotenant --help` groups them; `frame/` is
shared.

Rule: a verb asks the controller, which keeps the state, and shows the answer; it decides nothing.
"""
