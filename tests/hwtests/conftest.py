"""The hardware suite's own parts, without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `hwtests.summary`
