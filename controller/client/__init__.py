"""Asking a controller, for every face: the command line, the web page and the Python API.

- `connection.py`: one question, one answer, over ZeroMQ.
- `asking.py`: a connection by the settings in force, and what goes wrong on it as a `Problem`.
- `submitter.py`: who submits from this machine, by the same settings.
- `pages.py`, `arrays.py`, `output.py`: a long queue in parts, an array in one row, a job's output to its end.
"""
