"""The jobs of `cotenant demo`: training scripts, each a program of its own. In a wheel: `cotenant.examples`.

Rule: a script imports what stands beside it by its own name, as a user's would.
"""
