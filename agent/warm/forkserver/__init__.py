"""The fork server of warm starts: it runs as the user, has imported what jobs import, and forks their ranks.

Rule: standard library only, Python 3.9, and nothing of ours: only this folder is copied beside a job, under
the name `cotenant_forkserver`, and is off `sys.path` again before anything of the user's runs.

    server.py    imports, looks whether it is safe to fork, and forks a nanny per attempt
    safety.py    what it looks at; each finding is a row of `agent/warm/refusals.py`
    nanny.py     parent of one attempt's ranks, and owner of their exit statuses
    rank.py      turns a fork into what `python script` would be
"""
