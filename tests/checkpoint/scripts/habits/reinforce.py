"""Policy gradient: an episode is played, then learned from, once per episode."""

import sys

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(74)
policy = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 3))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
baseline, running = 0.0, []


def play():
    """Keep a point near the origin by pushing it left, not at all, or right."""
    state = torch.tensor([torch.rand(1).item() - 0.5, 0.0])
    log_probs, rewards = [], []
    for _ in range(8):
        distribution = Categorical(logits=policy(state))
        action = distribution.sample()
        velocity = state[1] + 0.2 * (action.item() - 1) + 0.05 * torch.randn(()).item()
        state = torch.stack([state[0] + velocity, velocity])
        log_probs.append(distribution.log_prob(action))
        rewards.append(-abs(state[0].item()))
    return torch.stack(log_probs), sum(rewards)


for episode in range(40):
    log_probs, episode_return = play()
    loss = -(episode_return - baseline) * log_probs.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    baseline = 0.9 * baseline + 0.1 * episode_return
    running.append(baseline)
    if episode % 10 == 0:
        print(f"Episode {episode}\tReturn: {episode_return:.2f}\tAverage: {baseline:.2f}")

torch.save({"policy": policy.state_dict(), "running": running}, sys.argv[1])
