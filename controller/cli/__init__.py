"""The `cotenant` command: one module per verb, in packages as `cotenant --help` groups them; `frame/` is
shared.

Rule: a verb asks and shows. What it needs to know is kept by the controller; nothing is decided here.
"""
