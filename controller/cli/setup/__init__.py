"""Verbs that set up a cluster or a shell: daemons, keys, settings, completion, the demo."""
