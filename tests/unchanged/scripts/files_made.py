"""The rights of what a script makes are those that its user's umask leaves."""

import os
import sys

import torch

os.makedirs("results/best", exist_ok=True)
with open("results/log.txt", "w") as file:
    file.write("begins\n")
torch.save({"weights": torch.ones(3)}, sys.argv[1])
print(*(f"{os.stat(name).st_mode & 0o777:o}" for name in ("results", "results/log.txt", sys.argv[1])))
