"""Plugins by which other programs submit here: Hydra, submitit and torchx find them by name.

Rule: nothing of ours imports them, each imports the one library that it is for, and what they ask for goes
through the Python API. The folder `hydra_plugins` installs at the top level, where Hydra looks."""
