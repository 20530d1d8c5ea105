"""FAKE. The one thing of NVIDIA's module that is needed: what its errors are."""

from __future__ import annotations


class DCGMError(Exception):
    pass
