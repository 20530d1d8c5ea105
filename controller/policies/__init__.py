"""Scheduling policies, one module or folder per published system.

Rule: a policy is pure. It sees a read-only view, returns actions with reasons, and imports only the
domain, its own kind, numpy and the standard library.
"""

__all__ = [
    "base",
    "classic",
    "entry",
    "lazer",
    "learned",
    "lucid",
    "order_options",
    "placement",
    "plugins",
    "registry",
]
