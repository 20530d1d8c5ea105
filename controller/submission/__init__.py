"""From what a user wrote (flags, a YAML file, a script's directives) to a typed, checked `Submit`.

Rule: every source is read into the same options (`options.py`), so that a key means one thing, has one
check and one error text wherever it was written.
"""
