"""Every script that we have, and how each is run.

Rule: a script is run as its author would run it, from its own place; nothing is copied. What is not there (a
package, the folder beside the checkout) is skipped with its reason.
"""

from __future__ import annotations

import importlib.util
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.checkpoint import habits
from tests.checkpoint.interpreter import INSTALLED
from tests.unchanged.compare import Rules
from tests.unchanged.loops import generate
from tests.unchanged.runs import USUAL_UMASK, Command
from tests.unchanged.traits import FILE, plain_script, read_traits

TESTS: Final = Path(__file__).resolve().parents[1]
OWN: Final = TESTS / "unchanged" / "scripts"
SHARED: Final = Path(os.environ.get("COTENANT_SHARED_DATA") or TESTS.parents[1] / "shared") / "inputs"
SAVED: Final = "saved.pt"
REFUSED: Final = (
    "none",
    "batchnorm",
    "centred",
    "shared",
    "shuffled",
    "counting",
    "attribute",
    "buffer",
    "states",
    "inplace",
    "scalar",
    "hook",
    "compiled",
    "dropout",
    "droppath",
)
"""What `tests/gradaccum/scripts/refused.py` is asked for."""


@dataclass(frozen=True, kw_only=True)
class Script:
    name: str
    command: Command
    rules: Rules = field(default_factory=Rules)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of its job (`Runner.job`)."""
    skipped: str = ""
    """Why it is not run; empty: it is."""
    known: str = ""
    """Why its job differs, where that is meant so."""
    slow: bool = False
    """Too long for the quick version."""
    text: str = ""
    """Of a script that is no file: it is written before it is run."""
    generated: bool = False
    """A failure of it is the generator's."""


def scripts() -> Iterator[Script]:
    """All but the generated ones."""
    yield from _traits()
    yield from _own()
    yield from _habits()
    yield from _gradaccum()
    yield from _checkpoint()
    yield from _shipped()
    yield from _shared()


# --- In the repository ---------------------------------------------------------------------------------

TRAIT: Final = "traits/"
TRAITS: Final = read_traits(FILE.read_text())
TRAITS_RULES: Final = Rules(masks=(r"USDT:.*", r"\b[IWE]\d{4} \d\d:[\d:.]+ \d+"))
"""The times that the libraries below torch write into their lines."""


def _traits() -> Iterator[Script]:
    for trait in TRAITS:
        command = Command(script=Path("train.py"), args=(SAVED,))
        text = plain_script(trait)
        known = KNOWN.get(trait.name, "")
        yield Script(name=TRAIT + trait.name, command=command, rules=TRAITS_RULES, known=known, text=text)


def loops(seed: int, count: int) -> Iterator[Script]:
    for number in range(count):
        command = Command(script=Path("train.py"), args=(SAVED,), limit_s=60.0)
        text = generate(seed, number, TRAITS)
        name = f"loops/{seed}-{number}"
        yield Script(name=name, command=command, rules=TRAITS_RULES, text=text, generated=True)


KNOWN: Final[Mapping[str, str]] = {
    "environment_listed": "a job has variables of its own",
    "path_listed": "the folder of what runs in a job is on its PYTHONPATH",
    "modules_listed": "what runs in a job imports modules",
    "interpreter_seen": "PYTHONFAULTHANDLER is set in a job",
    "files_left_open": "a job speaks with its supervisor by sockets",
    "aborts": "PYTHONFAULTHANDLER shows the stack of a crash in a job",
}
UMASKS: Final = {"files_made": 0o027}
FRAMEWORKS: Final = ("accelerate", "lightning", "transformers")
"""Begin the names of scripts that need them."""
OPTIONS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "plain_training": ((), ("-X", "dev"), ("-W", "error"), ("-O",), ("-I",), ("-S", "-B")),
}
"""Of the interpreter, for scripts that are run more than once."""


def _own() -> Iterator[Script]:
    """Scripts that look at the start or the end of their interpreter, or start others: each gets its own."""
    for path in sorted(OWN.glob("*.py")):
        package = path.stem.partition("_")[0] if path.stem.startswith(FRAMEWORKS) else ""
        rules = FRAMEWORK_RULES if package else Rules()
        for options in OPTIONS.get(path.stem, ((),)):
            umask = UMASKS.get(path.stem, USUAL_UMASK)
            command = Command(script=path, args=(SAVED,), cold=True, options=options, umask=umask)
            name = "".join((f"own/{path.stem}", *options))
            known, skipped = KNOWN.get(path.stem, ""), _missing(package)
            yield Script(name=name, command=command, rules=rules, known=known, skipped=skipped)


def _habits() -> Iterator[Script]:
    table = (
        ("habits", habits.SCRIPTS, habits.NAMES, HABITS_RULES),
        ("public", habits.PUBLIC, habits.PUBLIC_NAMES, PUBLIC_RULES),
    )
    for group, folder, names, rules in table:
        for name in names:
            command = Command(script=folder / f"{name}.py", args=(SAVED,), env={"PYTHONPATH": str(INSTALLED)})
            yield Script(name=f"{group}/{name}", command=command, rules=rules.get(name, Rules()))


CLOCK: Final = r"\d+(\.\d+)? ?(s|ms)\b"
BARS: Final = Rules(masks=(r"(?s)\r.*",))
"""What a progress bar writes depends on the time, from its first line on."""
HABITS_RULES: Final[dict[str, Rules]] = {
    "context_manager": Rules(masks=(CLOCK,)),
    "log_file": Rules(masks=(CLOCK,)),
    "logging_module": Rules(masks=(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+",)),
    "progress_bar": BARS,
    "progress_bar_enumerate": BARS,
    "progress_bar_plain": BARS,
    "phases": Rules(masks=(CLOCK,)),
    "timing": Rules(masks=(CLOCK,)),
    "trange_epochs": BARS,
}
PUBLIC_RULES: Final[dict[str, Rules]] = {
    "examples_fast_neural_style": Rules(masks=(CLOCK,)),
    "examples_forward_forward": BARS,
    "examples_gcn": Rules(masks=(CLOCK,)),
    "examples_snli": Rules(masks=(rf" *{CLOCK}",)),
    "examples_word_language_optimizer": Rules(masks=(rf" *{CLOCK}",)),
    "fixmatch": BARS,
    "lucidrains_ddpm": BARS,
    "mingpt_trainer": Rules(masks=(CLOCK,)),
    "nanogpt_train": Rules(masks=(CLOCK,)),
    "pytorch_gan_cyclegan": BARS,
    "tiny_diffusion": BARS,
}


def _gradaccum() -> Iterator[Script]:
    folder = TESTS / "gradaccum" / "scripts"
    needs = {
        "accelerate_loop": "accelerate",
        "lightning_fit": "lightning",
        "transformers_trainer": "transformers",
    }
    more: dict[str, list[tuple[str, ...]]] = {
        "adversaries": [(), ("--penalty",)],
        "mixed": [(), ("--float32",)],
        "refused": [(kind,) for kind in REFUSED],
    }
    for path in sorted(folder.glob("*.py")):
        if path.stem == "gang":  # It needs two ranks.
            continue
        for words in more.get(path.stem, [()]):
            name = "/".join(("gradaccum", path.stem, *(word.strip("-") for word in words)))
            command = Command(script=path, args=(SAVED, *words))
            package = needs.get(path.stem, "")
            rules = FRAMEWORK_RULES if package else Rules()
            yield Script(name=name, command=command, rules=rules, skipped=_missing(package))


def _checkpoint() -> Iterator[Script]:
    folder = TESTS / "checkpoint" / "scripts"
    table: dict[str, tuple[tuple[str, ...], str]] = {
        "plain_loop": (("3", SAVED), ""),
        "image_classes": (("--num-workers", "1"), ""),
        "hf_trainer": (("2",), "transformers"),
        "lightning_trainer": (("3",), "lightning"),
        "accelerate_loop": (("3",), "accelerate"),
    }
    for name, (args, package) in table.items():
        command = Command(script=folder / f"{name}.py", args=args)
        rules = FRAMEWORK_RULES if package else Rules()
        yield Script(name=f"checkpoint/{name}", command=command, rules=rules, skipped=_missing(package))


FRAMEWORK_RULES: Final = Rules(
    masks=(r"['\"](train|eval)_(runtime|samples_per_second|steps_per_second)['\"]: '?[\d.]+'?", *BARS.masks)
)


def _missing(package: str) -> str:
    if not package or importlib.util.find_spec(package) is not None:
        return ""
    return f"{package} is not installed: pip install -r tests/requirements-frameworks.txt"


# --- Out of packages -----------------------------------------------------------------------------------

SHIPPED: Final = (
    "test_cli",
    "test_distributed_data_loop",
    "test_merge_weights",
    "test_ops",
    "test_script",
    "test_sync",
)
"""What accelerate ships and needs neither a GPU, nor a network, nor another package. Torch ships benchmarks
alone, which print times; Lightning and transformers ship models to train (`scripts/lightning_boring.py` and
`scripts/transformers_tiny.py` do)."""
QUICK_SHIPPED: Final = frozenset(("test_ops", "test_cli"))


def _shipped() -> Iterator[Script]:
    spec = importlib.util.find_spec("accelerate")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    folder = Path(places[0] if places else "accelerate") / "test_utils" / "scripts"
    for name in SHIPPED:
        path = folder / f"{name}.py"
        skipped = _missing("accelerate") or ("" if path.exists() else f"this accelerate has no {path}")
        yield Script(
            name=f"shipped/{name}",
            command=Command(script=path, cold=True),
            skipped=skipped,
            slow=name not in QUICK_SHIPPED,
        )


# --- Beside the checkout -------------------------------------------------------------------------------

NOT_ALONE: Final = frozenset(
    ("drive", "drive_at", "split", "splitfuzz", "gen_fuzz", "hf", "resume_ddp_powersgd")
)
"""Drivers, and scripts that need more than one argument or more than one process."""
EXPLICIT: Final = "explicit"
"""Begins the names of those that know us."""
SHARED_NEEDS: Final = {"accelerate_prepared": "accelerate", "trainer_own_counter": "transformers"}
LONG: Final = frozenset(("dropout_profiled", "trainer_own_counter"))


def _shared() -> Iterator[Script]:
    if not SHARED.is_dir():
        nothing = Command(script=SHARED)
        yield Script(name="shared", command=nothing, skipped=f"there is no folder {SHARED}")
        return
    for path in sorted((*(SHARED / "train").glob("*.py"), *(SHARED / "scripts").glob("*.py"))):
        if path.stem in NOT_ALONE or path.stem.startswith(EXPLICIT):
            continue
        command = Command(script=path, args=(SAVED,))
        yield Script(
            name=f"shared/{path.stem}",
            command=command,
            rules=SHARED_RULES.get(path.stem, Rules()),
            skipped=_missing(SHARED_NEEDS.get(path.stem, "")),
            settings=SHARED_SETTINGS.get(path.stem, {}),
            known=SHARED_KNOWN.get(path.stem, ""),
            slow=path.stem in LONG,
        )


SHARED_RULES: Final[dict[str, Rules]] = {"trainer_own_counter": FRAMEWORK_RULES}
SHARED_KNOWN: Final = {
    "resume_params_from_set_same_shapes": "the order of a set is that of its objects' places in memory"
}
SHARED_SETTINGS: Final[dict[str, Mapping[str, Any]]] = {"dropout_profiled": {"profile_s": 3.0}}


def chosen_for_quick(found: list[Script], seed: int, *, traits: int, others: int) -> list[Script]:
    """So many of the traits, and so many of the others that are not slow, drawn by the seed."""
    draw, drawn = random.Random(seed), set()
    for is_trait, most in ((True, traits), (False, others)):
        names = [each.name for each in found if not each.slow and each.name.startswith(TRAIT) is is_trait]
        drawn |= set(draw.sample(names, min(most, len(names))))
    return [each for each in found if each.name in drawn]
