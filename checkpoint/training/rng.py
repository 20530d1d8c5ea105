"""Random state of one rank: captured as plain values, put back, or derived anew.

Rule: whatever draws random numbers between two steps is here: Python, numpy (if the script imported it),
torch on the CPU and on every CUDA device, and the generators that the loader, its samplers and its
dataset carry as attributes.
"""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch


def capture() -> dict[str, Any]:
    """The global generators of this process."""
    state: dict[str, Any] = {"python": _python_state(random.getstate()), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = _numpy_legacy_state(numpy.random.get_state(legacy=True))
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore(state: dict[str, Any]) -> list[str]:
    """Put the global generators back; returns what could not be put back."""
    random.setstate(_python_tuple(state["python"]))
    torch.set_rng_state(state["torch"].clone())
    problems = []
    numpy = sys.modules.get("numpy")
    if "numpy" in state and numpy is not None:
        name, keys, position, has_gauss, gauss = state["numpy"]
        numpy.random.set_state((name, keys, position, has_gauss, gauss))
    elif numpy is not None:
        problems.append("numpy was not imported when the checkpoint was written: its random state is new")
    if "cuda" in state:
        devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for device, cuda_state in enumerate(state["cuda"][:devices]):
            torch.cuda.set_rng_state(cuda_state.clone(), device)
        if devices != len(state["cuda"]):
            problems.append(f"CUDA devices: {len(state['cuda'])} then, {devices} now")
    return problems


def reseed(origin: dict[str, Any], rank: int, world_size: int) -> None:
    """New, deterministic generators for a rank of another world size, derived from rank 0's saved state."""
    digest = hashlib.sha256(bytes(origin["torch"].tolist()) + f"/{rank}/{world_size}".encode()).digest()
    random.seed(int.from_bytes(digest[:8], "big"))
    torch.manual_seed(int.from_bytes(digest[8:16], "big") >> 1)  # seeds every CUDA device as well
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(int.from_bytes(digest[16:20], "big"))


class Sources:
    """Generators that belong to objects of the script: found once, then captured and put back in order."""

    def __init__(self, *holders: Any) -> None:
        self._found: list[Any] = []
        for holder in holders:
            for value in _attributes(holder):
                if is_generator(value) and not any(value is known for known in self._found):
                    self._found.append(value)

    def __len__(self) -> int:
        return len(self._found)

    def capture(self) -> list[Any]:
        return [generator_state(generator) for generator in self._found]

    def restore(self, states: list[Any]) -> str | None:
        """None, or why the states do not fit."""
        if [state[0] for state in states] != [_kind(generator) for generator in self._found]:
            return f"the loader has {len(self._found)} random generators, the checkpoint {len(states)}"
        for generator, (kind, state) in zip(self._found, states):
            set_generator(generator, kind, state)
        return None


def _attributes(holder: Any) -> list[Any]:
    return [value for _, value in sorted(getattr(holder, "__dict__", {}).items())]


def is_generator(value: Any) -> bool:
    """A torch, Python or numpy generator object."""
    return _kind(value) != ""


def _kind(value: Any) -> str:
    if isinstance(value, torch.Generator):
        return "torch"
    if isinstance(value, random.Random):
        return "python"
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return "numpy"
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return "numpy-legacy"
    return ""


def generator_state(generator: Any) -> tuple[str, Any] | None:
    """Its kind and state; None: it has none to be had (the operating system's, one of a graph's capture)."""
    kind = _kind(generator)
    try:
        state: Any = generator.get_state() if kind == "torch" else None
        state = generator.getstate() if kind == "python" else state
    except (NotImplementedError, RuntimeError):
        return None
    if kind == "torch":
        return kind, state
    if kind == "python":
        return kind, _python_state(state)
    if kind == "numpy":
        return kind, _plain_numpy(generator.bit_generator.state)
    return kind, _numpy_legacy_state(generator.get_state(legacy=True))


def set_generator(generator: Any, kind: str, state: Any) -> None:
    if kind == "torch":
        generator.set_state(state.clone())
    elif kind == "python":
        generator.setstate(_python_tuple(state))
    elif kind == "numpy":
        generator.bit_generator.state = _unplain_numpy(state)
    else:
        generator.set_state(tuple(state))


def _python_state(state: tuple[Any, ...]) -> list[Any]:
    version, words, gauss = state
    return [version, list(words), gauss]


def _python_tuple(state: list[Any]) -> tuple[Any, ...]:
    version, words, gauss = state
    return version, tuple(words), gauss


def _numpy_legacy_state(state: Any) -> list[Any]:
    name, keys, position, has_gauss, gauss = state
    return [str(name), [int(key) for key in keys], int(position), int(has_gauss), float(gauss)]


def _plain_numpy(state: Any) -> Any:
    """numpy's bit generator states are nested dicts of integers and small arrays."""
    if isinstance(state, dict):
        return {key: _plain_numpy(value) for key, value in state.items()}
    if hasattr(state, "tolist"):
        return ["array", str(state.dtype), state.tolist()] if state.shape else state.item()
    return state


def _unplain_numpy(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _unplain_numpy(value) for key, value in state.items()}
    if isinstance(state, list) and state and state[0] == "array":
        return sys.modules["numpy"].array(state[2], dtype=state[1])
    return state
