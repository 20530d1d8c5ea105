"""For jobs that compile nothing: torch's compiler is not imported. Each start costs half as much of a core.

Rule: on the PYTHONPATH of jobs, for which this is the user's own `sitecustomize`. An optimizer's first
`zero_grad`, DDP and deterministic algorithms import `torch._dynamo` or `torch._inductor` only to be left
alone by them; here they find what they ask for. Whoever asks for anything else gets the real module. No
number that is trained changes.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

ASKED: dict[str, dict[str, object]] = {
    "torch._dynamo": {
        "disable": lambda function, *_, **__: function,
        "graph_break": lambda *_, **__: None,
        "trace_rules": SimpleNamespace(clear_lru_cache=lambda: None),
        "utils": SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
    },
    "torch._inductor": {},
    "torch._inductor.config": {},
}


class Eager:
    """Finds the three modules, and no other. (A base class from `importlib.abc` would cost every start
    fifteen milliseconds.)"""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name in ASKED else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(ASKED[module.__name__])
        vars(module)["__getattr__"] = lambda name: real(module.__name__, name)


EAGER = Eager()


def real(module: str, name: str) -> object:
    """What the real module has of that name: all three are there from now on."""
    if name.startswith("__"):
        raise AttributeError(name)
    if EAGER in sys.meta_path:
        sys.meta_path.remove(EAGER)
        for each in ASKED:
            sys.modules.pop(each, None)
            parent, _, leaf = each.rpartition(".")
            vars(sys.modules.get(parent, sys)).pop(leaf, None)
    return getattr(importlib.import_module(module), name)


sys.meta_path.insert(0, EAGER)
