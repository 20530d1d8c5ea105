"""Flags, YAML and scripts become one job spec."""
