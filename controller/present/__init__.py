"""How things are said to people, without a terminal: the floor under command line, page and Python API.

- `problem.py`, `units.py`, `tables.py`, `screen.py`: an error, a duration or a size, columns, colours.
- `jobs.py`, `job_page.py`, `etas.py`, `sharing.py`: the one list of job columns, all about one job.
- `devices.py`, `pairs.py`, `policies.py`, `accounting.py`, `usage.py`, `top_view.py`: what else is shown.
"""
