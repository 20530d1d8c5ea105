"""Flags, YAML and scripts become one job spec: the same for command line, page and Python API.

- `options.py` is the table of options, `quantities.py` reads their values, `directives.py` a script's lines.
- `build.py` makes the spec, `recording.py` what surrounds it: environment, secrets, working directory.
- `settings.py` changes options of a job that waits, `parameters.py` reads those of a policy.
"""
