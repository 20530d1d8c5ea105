"""Modules for the tools of others: plugins that Hydra, submitit and torchx find by name, and `cotenant mcp`.

Rule: nothing of ours imports them, each imports the one library that it is for, and what they ask for goes
through the Python API or the client. The folder `hydra_plugins` installs at the top level, where Hydra looks.
"""
