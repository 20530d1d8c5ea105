"""Fixtures of versions are compared with what is written today."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `tests.compat.make_fixtures`
