"""What a job prints of its training: its loss and other numbers with names, and the link to its page at W&B
or MLflow; for jobs that tell it in no other way. Pure.

Rule: what is not surely one of these is nothing. A name needs `=` or `:` before its number, or a number with
a decimal point; and it has a word that metrics have, or comes again on another line with another number, as
settings do not. A link needs the words of those two libraries.
"""

from __future__ import annotations

import math
import re
from typing import Final

import msgspec

from cotenant.controller.domain import METRIC_CHARACTERS_MAX, is_link

LOSS: Final = "loss"
_NUMBER: Final = r"([-+]?\d{1,12}(?:\.\d{0,20})?(?:e[-+]?\d{1,3})?)(?=[\s,;|)\]}'\"])"
"""A number at the very end may go on in what is printed next."""
_LOSS: Final = re.compile(
    r"(?<![a-z])(?<!val[ _.:/-])(?<!eval[ _.:/-])(?<!test[ _.:/-])(?<!valid[ _.:/-])(?<!validation[ _.:/-])"
    rf"loss['\"]?\s{{0,3}}[:=]?\s{{0,3}}{_NUMBER}",
    re.IGNORECASE,
)
"""`loss 0.31`, `loss=0.31,`, `'train_loss': 3.1e-1}`."""
_NAMED: Final = re.compile(
    rf"(?<![\w./%:-])([a-z][\w./-]{{0,{METRIC_CHARACTERS_MAX - 1}}})['\"]?"
    rf"(?:[ ]{{0,3}}=[ ]{{0,3}}|:[ ]{{1,3}}|[: ][ ]{{0,2}}(?=[-+]?\d{{1,12}}(?:\.\d|e[-+]?\d))){_NUMBER}",
    re.IGNORECASE,
)
"""`val_acc=0.91`, `'eval/f1': 0.8}`, `accuracy: 91`, `acc 0.91`."""
_METRIC: Final = re.compile(
    r"(?:^|[_./-])(?:loss|acc|accuracy|f1|auc|auroc|map|iou|bleu|rouge\w*|ppl|perplexity|err|error|score|reward|"
    r"mae|mse|rmse|r2|wer|cer|psnr|ssim|fid|precision|recall|dice|top|nll|bpc)(?:[_./@-]|\d*$)",
    re.IGNORECASE,
)
"""A name that is a metric's even if it is printed once."""
_OF_LAUNCHERS: Final = frozenset(("pid", "exitcode", "rank", "local_rank"))
"""Names in what torchrun prints of ranks that have failed."""
_LINE_END: Final = re.compile(r"[\r\n]")
LINE_BYTES: Final = 1024
LINK_MARK: Final = b"View run "
_LINK: Final = re.compile(
    rb"View run (?:[^\r\n]{0,300}? )?at:? (?:\x1b\[[0-9;]{0,16}m)?(https?://[!-~]{1,600})[\s\x1b]"
)
"""`wandb: (a rocket) View run at URL`, `... View run NAME at: URL`; MLflow prints the second form."""


class PrintedFacts(msgspec.Struct, frozen=True):
    """What was read from a job's output."""

    metrics: tuple[tuple[str, float], ...] = ()
    """The last of each name, in order of their appearance; `loss` is that of training alone."""
    link: str = ""
    lost: str = ""
    """What of the output could not be written, in a sentence."""


def metrics_in(output: str, *, is_cut: bool = False) -> dict[str, float]:
    """The numbers that were printed last under each name. The loss of training is `loss`, whatever stands
    before the word; those of validation and tests have their own names. `is_cut`: the first line may lack its
    beginning, and so may a name on it."""
    if is_cut:
        first = _LINE_END.search(output)
        output = output[first.end() :] if first else ""
    losses = [(match.start(), LOSS, float(match[1])) for match in _LOSS.finditer(output)]
    named = [(match.start(), match[1], float(match[2])) for match in _NAMED.finditer(output)]
    named = [each for each in named if each[1].lower() not in (LOSS, *_OF_LAUNCHERS)]
    numbers: dict[str, set[float]] = {}
    for _, name, value in named:
        numbers.setdefault(name, set()).add(value)
    found: dict[str, float] = {}
    for _, name, value in sorted(losses + named):
        if name == LOSS or len(numbers[name]) > 1 or _METRIC.search(name):
            found.pop(name, None)  # What was printed last stands last.
            if math.isfinite(value):
                found[name] = value
    return found


def link_in(output: bytes) -> str:
    """The first link of a run that was printed; empty: there is none, or it may hold a secret."""
    links = (str(match[1], "ascii") for match in _LINK.finditer(output))
    return next(filter(is_link, links), "")
