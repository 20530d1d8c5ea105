"""The `cotenant` command: one module per verb, and what all of them share.

Rule: a verb asks and shows. What it needs to know is kept by the controller; nothing is decided here.
"""
