"""Where a script's imports come from, and what looks for them."""

import sys

import torch

print("\n".join(sys.path))
print([getattr(each, "__name__", type(each).__name__) for each in sys.meta_path])
print(
    type(torch.__spec__.loader).__name__, sorted(vars(torch.__spec__.loader)), type(torch.__spec__).__name__
)
