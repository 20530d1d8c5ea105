"""The old policy is taken over from the new one at the start of each epoch, as in PPO."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(92)
observations = torch.randn(64, 4)
actions = torch.randint(0, 3, (64,))
advantages = torch.randn(64) + (actions == 1).float()
loader = DataLoader(TensorDataset(observations, actions, advantages), batch_size=8, shuffle=True)
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
old_policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
clip_eps = 0.2
clipped_fractions = []

for iteration in range(5):
    old_policy.load_state_dict(policy.state_dict())
    clipped = 0
    for obs, act, adv in loader:
        log_prob = policy(obs).log_softmax(-1).gather(1, act[:, None]).squeeze(1)
        with torch.no_grad():
            old_log_prob = old_policy(obs).log_softmax(-1).gather(1, act[:, None]).squeeze(1)
        ratio = (log_prob - old_log_prob).exp()
        surrogate = torch.min(ratio * adv, ratio.clamp(1 - clip_eps, 1 + clip_eps) * adv)
        loss = -surrogate.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clipped += ((ratio - 1).abs() > clip_eps).sum().item()
    clipped_fractions.append(clipped / len(observations))
    print(f"iteration {iteration}: loss {loss.item():.4f}, clipped {clipped_fractions[-1]:.3f}")

torch.save({"policy": policy.state_dict(), "clipped_fractions": clipped_fractions}, sys.argv[1])
