"""The traits of `traits.txt`, and the plain training loop that each is put into. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Final

FILE: Final = Path(__file__).with_name("traits.txt")
ADDED: Final = (
    "top",
    "init",
    "forward",
    "methods",
    "setup",
    "start",
    "epoch",
    "before",
    "after",
    "late",
    "end",
)
"""Places where several traits may stand one after the other."""
INSTEAD: Final = ("data", "loader", "model", "optimizer", "epochs", "batches", "step")
"""Places where one stands instead of the plain code."""
MARKS: Final = ("alone", "whole", "local")
PLAIN: Final[Mapping[str, str]] = {
    "data": "TensorDataset(torch.randn(48, 6), torch.randn(48, 1))",
    "loader": "DataLoader(data, batch_size=8, shuffle=True)",
    "model": "Model()",
    "optimizer": "torch.optim.Adam(model.parameters(), lr=0.01)",
    "epochs": "range(4)",
    "batches": "loader",
    "step": """\
optimizer.zero_grad()
loss = nn.functional.mse_loss(model(x), y)
loss.backward()
optimizer.step()""",
}
HEAD: Final = """\
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed({seed})
np.random.seed({seed})
outcomes = {{}}
"""
MODEL: Final = """\


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential({layers})
        self.head = nn.Linear(8, 1)
{init}
    def forward(self, x):
        h = self.net(x)
{forward}
        return self.head(h)

{methods}

"""
LOOP: Final = """\
{start}
for epoch in {epochs}:
{epoch}
    for x, y in {batches}:
{before}
{step}
{after}
{late}
    print(epoch, repr(loss.item()))
"""
TRAINED: Final = "trained"
"""Begins the first line that is printed after the loop."""
END: Final = f"""\
print("{TRAINED}", outcomes)
{{end}}
print("weights", repr(sum(p.detach().double().sum().item() for p in model.parameters())))
torch.save({{{{"weights": dict(nn.Module.state_dict(model)), "outcomes": outcomes}}}}, sys.argv[1])
"""


@dataclass(frozen=True, kw_only=True)
class Trait:
    name: str
    code: Mapping[str, str]
    """By place."""

    @property
    def names(self) -> set[str]:
        """What its `top` binds, imports left out."""
        found: set[str] = set()
        for node in ast.parse(self.code.get("top", "")).body:
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.Assign(targets=targets):
                    found |= {
                        each.id
                        for target in targets
                        for each in ast.walk(target)
                        if isinstance(each, ast.Name)
                    }
        return found

    def goes_with(self, others: Iterable[Trait]) -> bool:
        """Neither stands where the other would, nor takes its names."""
        here, others = set(self.code), list(others)
        taken = {place for other in others for place in other.code}
        if {"alone"} & (here | taken) or here & taken & set(INSTEAD):
            return False
        if any(self.names & other.names for other in others):
            return False
        of_model = {"init", "forward", "methods", "setup"}
        return not (("model" in here and taken & of_model) or ("model" in taken and here & of_model))


def read_traits(text: str) -> list[Trait]:
    """Raises ValueError: a line is none, or its place is unknown."""
    found: dict[str, dict[str, list[str]]] = {}
    name = place = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("["):
            name, place = line[1:].rstrip("]"), ""
            found[name] = {}
        elif "|" in line and not line.startswith("#"):
            head, _, rest = line.partition("|")
            place = head.strip() or place
            if place not in (*ADDED, *INSTEAD, *MARKS):
                raise ValueError(f"line {number}: {place!r} is no place")
            found[name].setdefault(place, []).append(rest[1:])
        elif line and not line.startswith("#"):
            raise ValueError(f"line {number} is neither a trait's name nor code")
    return [
        Trait(name=name, code={place: "\n".join(lines) for place, lines in code.items()})
        for name, code in found.items()
    ]


def merged(traits: Iterable[Trait]) -> dict[str, str]:
    """The code of several traits by place, with the plain code where none of them has any."""
    code = dict.fromkeys(ADDED, "") | dict(PLAIN)
    for trait in traits:
        for place, text in trait.code.items():
            if place in INSTEAD:
                code[place] = text
            elif place in ADDED:
                code[place] += text + "\n"
    return code


def model_of(code: Mapping[str, str], layers: str = "nn.Linear(6, 8), nn.Tanh()") -> str:
    return MODEL.format(
        layers=layers,
        init=indent(code["init"], " " * 8),
        forward=indent(code["forward"], " " * 8),
        methods=indent(code["methods"], " " * 4),
    )


def loop_of(code: Mapping[str, str]) -> str:
    deep = {place: indent(code[place], " " * 8) for place in ("before", "step", "after")}
    shallow = {place: indent(code[place], " " * 4) for place in ("epoch", "late")}
    return LOOP.format(start=code["start"], epochs=code["epochs"], batches=code["batches"], **deep, **shallow)


def setup_of(code: Mapping[str, str]) -> str:
    names = ("data", "loader", "model", "optimizer")
    return "".join(f"{name} = {code[name]}\n" for name in names) + code["setup"]


def plain_script(trait: Trait, seed: int = 3) -> str:
    """The trait alone, in a loop over epochs and batches at the top of a file."""
    code = merged([trait])
    parts = (HEAD.format(seed=seed), code["top"], model_of(code), setup_of(code), loop_of(code))
    return tidied("".join(parts) + END.format(end=code["end"]))


def tidied(text: str) -> str:
    """Without the lines of places where nothing stands."""
    lines = [line.rstrip() for line in text.splitlines()]
    kept = [line for number, line in enumerate(lines) if line or (number and lines[number - 1])]
    return "\n".join(kept) + "\n"
