"""Scheduling policies, one module or folder per published system, or for those that share one idea.

Rule: a policy is pure. It sees a read-only view, returns actions with reasons, and imports only the
domain, its own kind, numpy and the standard library.
"""

__all__ = [
    "base",
    "castor",
    "entries",
    "ordered",
    "plugins",
    "registry",
    "scored",
]
