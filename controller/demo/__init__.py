"""The demo: real jobs on a private cluster, and what it shows of them at the end."""
