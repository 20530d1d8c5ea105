"""One number for the parameters of a model, to compare two runs bit for bit.

Rule: the hash is over (name, dtype, shape, bytes) in the order of names, of the module inside DDP and
torch.compile wrappers, so that it does not depend on device, world size or memory layout.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable

import torch


def tensors_sha256(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(named, key=lambda item: item[0]):
        head = f"{name}\0{str(tensor.dtype)[len('torch.') :]}\0{tuple(tensor.shape)}\0"
        digest.update(head.encode())
        flat = tensor.detach().cpu().contiguous()
        digest.update(bytes_of(flat))
    return digest.hexdigest()


def bytes_of(tensor: torch.Tensor) -> ctypes.Array[ctypes.c_ubyte]:
    """The memory of a contiguous CPU tensor as a buffer, not copied (and without numpy)."""
    size_bytes = tensor.numel() * tensor.element_size()
    return (ctypes.c_ubyte * size_bytes).from_address(tensor.data_ptr() if size_bytes else 0)


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The user's own module inside DDP (`.module`) and torch.compile (`._orig_mod`)."""
    while True:
        inner = model.__dict__.get("_modules", {})
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = inner["module"]
        elif "_orig_mod" in inner and len(inner) == 1:
            model = inner["_orig_mod"]
        else:
            return model
