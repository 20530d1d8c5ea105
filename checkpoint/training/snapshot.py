"""State trees made of tensors and plain values only, and buffers to copy them into quickly.

Rule: a checkpoint holds nothing that needs unpickling code (it is loaded with `weights_only=True`), so the
save refuses anything else, with its path, and not the resume.

The stall of an asynchronous save is one copy. Fresh memory is far slower to write than memory in use
(page faults), so `Staging` prepares its buffers ahead, in the background, and keeps them.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from typing import Any, Callable

import torch

from cotenant.checkpoint.disk import memory
from cotenant.checkpoint.disk.layout import CheckpointError
from cotenant.checkpoint.guard import SAVING

TensorKey = tuple[str, torch.Size, tuple[int, ...], torch.dtype]


def plain(tree: Any, replace: Callable[[str, torch.Tensor], torch.Tensor], path: str = "") -> Any:
    """Returns the same tree in plain types, each tensor passed through `replace(path, tensor)`."""
    if isinstance(tree, torch.Tensor):
        return replace(path, tree)
    if tree is None or isinstance(tree, (bool, str, bytes)):
        return tree
    if isinstance(tree, int):
        return int(tree)  # also makes plain what only derives from int or float, such as numpy.float64
    if isinstance(tree, float):
        return float(tree)
    if isinstance(tree, dict):
        kept = type(tree) if type(tree) in (OrderedDict, Counter) else dict
        return kept(
            {_key(k, path): plain(v, replace, f"{path}.{k}" if path else str(k)) for k, v in tree.items()}
        )
    if isinstance(tree, (list, tuple)):
        parts = [plain(part, replace, f"{path}[{i}]") for i, part in enumerate(tree)]
        return tuple(parts) if isinstance(tree, tuple) else parts
    raise CheckpointError(
        f"cannot save {path or 'this'}: {type(tree).__module__}.{type(tree).__qualname__} is no tensor "
        "and no plain value; leave it out or give it as numbers, strings, lists and dicts"
    )


def _key(key: object, path: str) -> object:
    if isinstance(key, (str, int, float)):
        return key
    raise CheckpointError(f"cannot save {path or 'this'}: the key {key!r} is neither a string nor a number")


def reference_tensor(path: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns, for a save during which nothing changes, the tensor itself, or a copy if it views a larger
    storage."""
    _check_layout(path, tensor)
    kept = tensor.detach()
    if kept.untyped_storage().nbytes() > 2 * kept.numel() * kept.element_size() + 4096:
        return kept.clone()
    return kept


def _check_layout(path: str, tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided or tensor.is_meta or hasattr(tensor, "device_mesh"):
        raise CheckpointError(
            f"cannot save {path}: sharded (FSDP, DTensor), sparse and meta tensors are not supported; "
            "use DistributedDataParallel"
        )


class Staging:
    """Host buffers shaped like the state, written ahead of use so that copying into them is fast."""

    def __init__(self) -> None:
        self._buffers: dict[TensorKey, torch.Tensor] = {}
        self._lock = threading.Lock()
        self._preparing: threading.Thread | None = None

    def prepare(self, tree: Any) -> None:
        """Allocate and touch the buffers for `tree` in the background. Returns at once."""
        if self._preparing is not None:
            return
        wanted: list[tuple[TensorKey, bool]] = []

        def note(path: str, tensor: torch.Tensor) -> torch.Tensor:
            _check_layout(path, tensor)
            wanted.append((_buffer_key(path, tensor), tensor.is_cuda))
            return tensor

        plain(tree, note)
        self._preparing = threading.Thread(
            target=SAVING.door(self._allocate), args=(wanted,), name="cotenant-staging", daemon=True
        )
        self._preparing.start()

    def wait_prepared(self, timeout_s: float | None = None) -> None:
        if self._preparing is not None:
            self._preparing.join(timeout_s)

    def copy(self, tree: Any) -> tuple[Any, Callable[[], None]]:
        """A copy of `tree` in host memory, and a function that waits until it is complete (CUDA).

        The caller keeps at most one copy in use: the buffers are the same every time.
        """
        self.wait_prepared()
        sources: list[torch.Tensor] = []
        targets: list[torch.Tensor] = []
        seen: dict[tuple[int, torch.Size, tuple[int, ...], torch.dtype], torch.Tensor] = {}

        def stage(path: str, tensor: torch.Tensor) -> torch.Tensor:
            _check_layout(path, tensor)
            tensor = tensor.detach()
            same = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            if same not in seen or tensor.numel() == 0:  # tied weights stay tied
                seen[same] = self._buffer(_buffer_key(path, tensor), tensor.is_cuda)
                sources.append(tensor)
                targets.append(seen[same])
            return seen[same]

        staged = plain(tree, stage)
        return staged, _copy_all(sources, targets)

    def _buffer(self, key: TensorKey, pinned: bool) -> torch.Tensor:
        with self._lock:
            if key not in self._buffers:
                self._buffers[key] = _new_buffer(key, pinned)
            return self._buffers[key]

    def _allocate(self, wanted: list[tuple[TensorKey, bool]]) -> None:
        memory.give_way()
        for key, pinned in wanted:
            if key in self._buffers:
                continue
            buffer = self._buffer(key, pinned)
            memory.clear(buffer.data_ptr(), buffer.untyped_storage().nbytes())


def _buffer_key(path: str, tensor: torch.Tensor) -> TensorKey:
    # empty_like keeps dense strides, so that a resumed optimizer walks its state in the same order.
    like = torch.empty_like(tensor, device="meta")
    return path, like.shape, like.stride(), like.dtype


def _new_buffer(key: TensorKey, pinned: bool) -> torch.Tensor:
    _, shape, stride, dtype = key
    return torch.empty_strided(shape, stride, dtype=dtype, device="cpu", pin_memory=pinned)


def _copy_all(sources: list[torch.Tensor], targets: list[torch.Tensor]) -> Callable[[], None]:
    """Starts the copies of all tensors. On the CPU they are done on return; on CUDA the current stream orders
    them before the next optimizer step, and only the writer has to wait."""
    on_host: list[tuple[int, int, int]] = []
    devices = set()
    with torch.no_grad():
        for source, target in zip(sources, targets):
            if source.is_cuda:
                devices.add(source.device)
                target.copy_(source, non_blocking=True)
            elif _same_layout(source, target):
                on_host.append((target.data_ptr(), source.data_ptr(), source.numel() * source.element_size()))
            else:
                target.copy_(source)
    memory.copy_all(on_host)
    events = []
    for device in devices:
        with torch.cuda.device(device):
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            events.append(event)

    def wait() -> None:
        for event in events:
            event.synchronize()

    return wait


def _same_layout(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether copying the bytes in a row copies the tensor: dense, same strides, nothing lazy about it."""
    return (
        source.stride() == target.stride()
        and source.numel() * source.element_size() == target.untyped_storage().nbytes()
        and not (source.is_conj() or source.is_neg())
        and source.device.type == "cpu"
    )
