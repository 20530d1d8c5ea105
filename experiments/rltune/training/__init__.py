"""Training of learned orders on simulated windows: `rltune` by PPO, `scorer` by an evolution strategy.

    trace -> windows (what sjf had left, then 256 jobs) -> rollouts in the engine of production -> a model
    file

Rule: torch is imported by `ppo.py` alone, which is imported where a network is trained: rollouts, in other
processes, compute with numpy, as a controller does.
"""

# fmt: off
from cotenant.controller.training import NoBackend
from experiments.rltune.training.evolution import train_scorer
from experiments.rltune.training.options import (
    PRESETS, EpochTold, OnEpoch, TrainingMetric, TraceParts, TrainingOptions,
)
from experiments.rltune.training.train import train_rltune

__all__ = [
    "PRESETS", "EpochTold", "OnEpoch", "TrainingMetric", "NoBackend", "TraceParts", "TrainingOptions",
    "train_rltune", "train_scorer",
]
# fmt: on
