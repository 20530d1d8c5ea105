"""The loss as a job prints it, for jobs that tell it in no other way. Pure."""

from __future__ import annotations

import math
import re
from typing import Final

_PRINTED: Final = re.compile(
    r"(?<![a-z])(?<!val[ _.:/-])(?<!eval[ _.:/-])(?<!test[ _.:/-])(?<!valid[ _.:/-])(?<!validation[ _.:/-])"
    r"loss['\"]?\s{0,3}[:=]?\s{0,3}([-+]?\d{1,12}(?:\.\d{0,20})?(?:e[-+]?\d{1,3})?)(?=[\s,;|)\]}'\"])",
    re.IGNORECASE,
)
"""`loss 0.31`, `loss=0.31,`, `'train_loss': 3.1e-1}`. A number at the very end may go on in what is printed
next."""


def last_loss_in(output: str) -> float | None:
    """The training loss that was printed last, or None; those of validation and tests are others."""
    found = _PRINTED.findall(output)
    value = float(found[-1]) if found else math.nan
    return value if math.isfinite(value) else None
