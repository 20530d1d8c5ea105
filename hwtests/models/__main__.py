"""Train one of the suite's models: `python -m hwtests.models cnn --steps 100`.

Rule: a plain training program. Under the scheduler it says what any job says; alone it is a script.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from hwtests.models import training
from hwtests.models.training import Options

NAMES = ("cnn", "embedding", "input_bound", "lstm", "mlp", "transformer")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hwtests.models", description="Train one of the models.")
    parser.add_argument("model", choices=NAMES)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--ddp", action="store_true", help="one rank of DDP")
    parser.add_argument("--small", action="store_true", help="a size for CPUs")
    parser.add_argument("--until", type=Path, help="stop once this file is there")
    parser.add_argument("--losses", type=Path, help="a line per step goes here")
    given = vars(parser.parse_args(words))
    name, small = given.pop("model"), given.pop("small")
    options = Options(**given)
    training.seeded(options)
    result = training.train(training.build(name, small), options)
    print(
        json.dumps({"steps": result.steps, "loss": result.loss, "memory_mib": result.memory_mib}), flush=True
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
