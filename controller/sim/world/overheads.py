"""How long a job takes to load and to stop, by its model: a table that is MODELLED.

Rule: no trace records these times, so no number here is an observation of the trace's cluster. The table
below follows from the parameter counts of seven published models and five constants that were chosen; every
result that rests on it is checked with all its times scaled by 0.1 to 4.

Lazer (section 3.1) assigns one of seven model classes to each job at random and names no variants or times.

    load_s  = START_UP_S + state bytes / READ_BYTES_PER_S
    pause_s = TEARDOWN_S + state bytes / WRITE_BYTES_PER_S

State is what a checkpoint holds: float32 weights and Adam's two moments, 12 bytes a parameter. The rates are
what one job gets of a shared file system, start-up is everything from the launch to the first step that is
no reading of state (processes, imports, CUDA context, NCCL, first batch). They were chosen so that the means
over the classes come near what Lazer shows: about 100 s of load wasted by futile preemptions (section 3.2:
SRTF adds 113 s and Pollux 126 s of load) and a pause of 8 s on average. The paper does not settle it: its
"20.6 times" the load of SJF, read beside the seconds that are added, means loads of some 4 s; its opening
says "several to tens of minutes".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

BYTES_PER_PARAMETER = 12
START_UP_S = 86.0
READ_BYTES_PER_S = 100e6
TEARDOWN_S = 2.2
WRITE_BYTES_PER_S = 250e6

WARM_START_UP_RATIO = 0.1
"""Of start-up, where ranks are forked from a server that has imported their packages. Measured for the
imports on CPUs (experiments/results/bench-start.md); what a CUDA context and NCCL take stays and was not
measured, so on GPUs this is the best that can be hoped for."""

PARAMETERS: Mapping[str, int] = {
    "ConvNeXt": 88_591_464,  # ConvNeXt-B, torchvision's convnext_base (Liu et al., CVPR '22: 89 M).
    "EfficientNet": 66_347_960,  # EfficientNet-B7, torchvision's (Tan and Le, ICML '19: 66 M).
    "VGG19": 143_667_240,  # torchvision's vgg19 (Simonyan and Zisserman, ICLR '15: 144 M).
    "ViT": 304_326_632,  # ViT-L/16, torchvision's vit_l_16 (Dosovitskiy et al., ICLR '21: 307 M).
    "Swin": 87_768_224,  # Swin-B, torchvision's swin_b (Liu et al., ICCV '21: 88 M).
    "Conformer": 83_300_000,  # Conformer-B (Peng et al., ICCV '21: 83.3 M).
    "TNT": 65_600_000,  # TNT-B (Han et al., NeurIPS '21: 65.6 M).
}
"""Parameters of the variant we took of each class; Lazer does not say which it ran."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """The overhead of one attempt of a job, whatever its GPUs: DDP keeps one state, read and written once."""

    load_s: float
    """Launch to first step, >= 0."""
    pause_s: float
    """Stop request to devices free, >= 0."""

    def __post_init__(self) -> None:
        for value in (self.load_s, self.pause_s):
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"load and pause times must be 0 or more, got {self}")


def modelled_overhead(parameters: int, start_up_s: float = START_UP_S) -> Overhead:
    """What the module's formula gives for a model of so many parameters."""
    state_bytes = parameters * BYTES_PER_PARAMETER
    return Overhead(
        load_s=start_up_s + state_bytes / READ_BYTES_PER_S,
        pause_s=TEARDOWN_S + state_bytes / WRITE_BYTES_PER_S,
    )


def _modelled_table(start_up_s: float = START_UP_S) -> Mapping[str, Overhead]:
    return {name: modelled_overhead(parameters, start_up_s) for name, parameters in PARAMETERS.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Overheads:
    """Load and pause times by model. The scale multiplies every load: for checks of sensitivity."""

    name: str = "modelled"
    """`modelled` or `constant`: shown beside results."""
    table: Mapping[str, Overhead] = field(default_factory=_modelled_table)
    load_time_scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.table:
            raise ValueError("a table of overheads needs at least one model")
        if not (math.isfinite(self.load_time_scale) and self.load_time_scale >= 0.0):
            raise ValueError(f"a scale must be 0 or more, got {self.load_time_scale}")

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self.table)

    def load_s(self, model: str) -> float:
        return self.table[model].load_s * self.load_time_scale

    def pause_s(self, model: str) -> float:
        return self.table[model].pause_s


def launch_overheads(launch: Literal["warm", "cold"], load_time_scale: float) -> Overheads:
    """The modelled table's column for one way to start. Warm: every start, also the first of its kind."""
    if launch == "cold":
        return Overheads(load_time_scale=load_time_scale)
    table = _modelled_table(START_UP_S * WARM_START_UP_RATIO)
    return Overheads(name="modelled, warm", table=table, load_time_scale=load_time_scale)
