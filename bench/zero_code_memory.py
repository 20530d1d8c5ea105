"""What splitting a batch saves: peak main memory of a training process by s, under the zero-code hook.

    python bench/zero_code_memory.py

Each s is a process of its own that trains three steps of a model without a changed line; the number is its
greatest resident size less what it had when the first batch was made. On a CPU: a GPU's allocator differs.
"""

from __future__ import annotations

import resource
import subprocess
import sys

import machine

LAYERS, WIDTH, ROWS = 24, 256, 8192


def train() -> None:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(ROWS, WIDTH), torch.randint(0, 10, (ROWS,))
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) // 1024)


def main() -> None:
    print(machine.sentences())
    print(f"{LAYERS} layers, {WIDTH} wide, {ROWS} rows, float32")
    for s in (1, 2, 4, 8):
        words = ["-m", "cotenant.gradaccum.launch", "--steps", str(s), __file__, "train"]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
        print(f"s = {s}: {int(done.stdout)} MiB")


if __name__ == "__main__":
    train() if sys.argv[1:] == ["train"] else main()
