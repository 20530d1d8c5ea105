"""Where experiments find things and leave them, whichever folder their own file is in."""

from __future__ import annotations

from pathlib import Path
from typing import Final

EXPERIMENTS: Final = Path(__file__).resolve().parents[1]
ROOT: Final = EXPERIMENTS.parent
RESULTS: Final = ROOT / "experiments" / "results"
"""The pages."""
PICTURES: Final = ROOT / "docs" / "pictures"
"""Those of pages that have no folder of their own."""
CACHE: Final = EXPERIMENTS / ".cache"
"""Runs that are kept so that a page can be made again, or gone on with. Never in the repository."""
