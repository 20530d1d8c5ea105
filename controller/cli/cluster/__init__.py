"""Verbs about hosts, pairs and the policy."""
