"""Where benchmarks find things and leave them, whichever folder their own file is in."""

from __future__ import annotations

from pathlib import Path
from typing import Final

BENCH: Final = Path(__file__).resolve().parent
ROOT: Final = BENCH.parent
RESULTS: Final = ROOT / "docs" / "results"
"""The pages."""
CACHE: Final = BENCH / ".cache"
"""Runs that are kept so that a page can be made again, or gone on with. Never in the repository."""
