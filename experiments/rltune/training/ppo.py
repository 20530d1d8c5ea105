"""Proximal policy optimisation of two small networks, in torch: who goes first, and what a state is worth.

Source: RLTune section 4; Schulman et al. 2017. The actor scores jobs one by one and a softmax over those that
fit is the policy; the critic sees all jobs at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from cotenant.controller.papers.rltune import ACTOR, CRITIC, Layer
from experiments.rltune.training.options import Preset
from experiments.rltune.training.rollouts import Choices

HIDDEN: Final = (32, 16, 8)
WARM_SLOPE: Final = -20.0
"""Of the natural logarithm of the expected time: all but certain that the shorter goes first."""
WARM_STEPS: Final = 1_500
LN10_4: Final = 4.0 * float(np.log(10.0))


def network(inputs: int) -> nn.Sequential:
    """Hidden layers of 32, 16 and 8, one output."""
    layers: list[nn.Module] = []
    for before, after in pairwise((inputs, *HIDDEN, 1)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


class ActorCritic:
    """Two networks and their optimisers; everything of it is in `state`."""

    def __init__(self, preset: Preset, window: int, seed: int) -> None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self._preset = preset
        self.actor, self.critic = network(len(ACTOR)), network(window * len(CRITIC))
        if preset.warm_start:
            self._warm_start(seed)
        self._actor_step = torch.optim.Adam(self.actor.parameters(), lr=preset.actor_rate)
        self._critic_step = torch.optim.Adam(self.critic.parameters(), lr=preset.critic_rate)

    def _warm_start(self, seed: int) -> None:
        """Logits as of sjf: fitted on columns as jobs have them."""
        generator = torch.Generator().manual_seed(seed)
        step = torch.optim.Adam(self.actor.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(step, WARM_STEPS)
        for _ in range(WARM_STEPS):
            rows = _like_jobs(512, generator)
            wanted = WARM_SLOPE * LN10_4 * rows[:, 0]
            loss = ((self.actor(rows)[:, 0] - wanted) ** 2).mean()
            step.zero_grad()
            loss.backward()
            step.step()
            schedule.step()

    def improve(self, choices: Choices) -> float:
        """Updates the networks for one epoch; returns how far the policy has moved (approximate KL)."""
        actor, critic = torch.from_numpy(choices.actor).double(), torch.from_numpy(choices.critic).double()
        allowed, chosen = torch.from_numpy(choices.allowed), torch.from_numpy(choices.chosen)
        before, wanted = torch.from_numpy(choices.log_probability), torch.from_numpy(choices.value)
        advantage = torch.from_numpy(choices.advantage)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        kl, preset = 0.0, self._preset
        for _ in range(preset.iterations_max):
            now = self._log_probability(actor, allowed, chosen)
            kl = float((before - now).mean().detach())
            if kl > preset.kl_max:
                break
            odds = torch.exp(now - before)
            clipped = torch.clamp(odds, 1.0 - preset.clip, 1.0 + preset.clip)
            loss = -torch.minimum(odds * advantage, clipped * advantage).mean()
            self._actor_step.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._actor_step.step()
        for _ in range(preset.iterations_max):
            loss = ((self.critic(critic.flatten(1))[:, 0] - wanted) ** 2).mean()
            self._critic_step.zero_grad()
            loss.backward()
            self._critic_step.step()
        return kl

    def _log_probability(self, actor: Tensor, allowed: Tensor, chosen: Tensor) -> Tensor:
        logits = torch.full(allowed.shape, -torch.inf, dtype=torch.float64)
        logits[allowed] = self.actor(actor[allowed])[:, 0]
        return torch.log_softmax(logits, dim=1).gather(1, chosen[:, None])[:, 0]

    def layers(self) -> tuple[Layer, ...]:
        return layers_of(self.actor)

    def critic_arrays(self) -> Sequence[tuple[Any, Any]]:
        linear = [each for each in self.critic if isinstance(each, nn.Linear)]
        return [(each.weight.detach().numpy().T.copy(), each.bias.detach().numpy().copy()) for each in linear]

    def state(self) -> dict[str, Any]:
        """The state from which a training goes on later."""
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "actor_step": self._actor_step.state_dict(),
            "critic_step": self._critic_step.state_dict(),
        }

    def go_on(self, state: dict[str, Any]) -> None:
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])
        self._actor_step.load_state_dict(state["actor_step"])
        self._critic_step.load_state_dict(state["critic_step"])


def layers_of(made: nn.Sequential) -> tuple[Layer, ...]:
    linear = [each for each in made if isinstance(each, nn.Linear)]
    return tuple(
        Layer(
            weights=tuple(map(tuple, each.weight.detach().numpy().T.tolist())),
            biases=tuple(each.bias.detach().tolist()),
        )
        for each in linear
    )


def _like_jobs(count: int, generator: torch.Generator) -> Tensor:
    """Rows of columns as waiting jobs have them; shape (count, columns)."""
    drawn = torch.rand((count, 6), generator=generator, dtype=torch.float64)
    log_time, log_gpus, log_wait = 7.0 * drawn[:, 0], 7.0 * drawn[:, 1] ** 2, 7.0 * drawn[:, 2]
    time_s, wait_s, gpus = 10.0**log_time, 10.0**log_wait, 2.0**log_gpus
    free = 64.0 * drawn[:, 3] ** 2
    return torch.stack(
        (
            log_time / 4.0,
            log_gpus / 3.0,
            log_wait / 4.0,
            (log_time + 0.30103 * log_gpus) / 5.0,
            wait_s / (wait_s + time_s),
            gpus / (gpus + free),
            (drawn[:, 4] < 0.7).double(),
            drawn[:, 5],
        ),
        dim=1,
    )


def save_state(file: Any, value: dict[str, Any]) -> None:
    torch.save(value, file)


def load_state(file: Any) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(file, weights_only=True)
    return found
