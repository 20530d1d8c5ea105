"""Two interpreters that seed nothing do not draw the same, and two spawned workers do not either."""

import multiprocessing
import random
import subprocess
import sys

CHILD = "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(1).item())"


def draw(_):
    import numpy
    import torch

    return random.random(), numpy.random.rand(), torch.rand(1).item()


if __name__ == "__main__":
    children = [
        subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True) for _ in range(2)
    ]
    print(
        "children", "alike" if children[0].stdout == children[1].stdout else "different", children[0].stderr
    )
    drawn = []
    for _ in range(2):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            drawn += pool.map(draw, [0])
    print("workers", "alike" if drawn[0] == drawn[1] else "different")
