"""Traces: what was submitted to a cluster, when, and how long it ran; read, imported or generated."""
