"""The Python API: a thin layer over the client, for scripts and notebooks.

Rule: a call asks the controller over a connection of its own and closes it; so nothing is left running, and
any thread may call. What a job is asked for is the command line's table of options. `face/` is the `__init__`
of `cotenant` itself and has the list of what is public; `inside.py` runs in the job and loads nothing of the
rest."""
