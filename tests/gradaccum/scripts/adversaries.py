"""Two models, two optimizers; one model's output goes into the other; a penalty on an input's gradient."""

import sys

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(11)
maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
judge = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
maker_optimizer = torch.optim.Adam(maker.parameters(), lr=1e-3)
judge_optimizer = torch.optim.Adam(judge.parameters(), lr=1e-3)
for _ in range(4):
    real, noise = torch.randn(14, 2) + 1, torch.randn(14, 4)
    judge_optimizer.zero_grad()
    loss = judge(maker(noise).detach()).mean() - judge(real).mean()
    if "--penalty" in sys.argv:
        mixed = (real + maker(noise).detach()).requires_grad_()
        (slope,) = torch.autograd.grad(judge(mixed).sum(), mixed, create_graph=True)
        loss = loss + (slope.norm(dim=1) - 1).square().mean()
    loss.backward()
    judge_optimizer.step()
    maker_optimizer.zero_grad()
    (-judge(maker(noise)).mean()).backward()
    maker_optimizer.step()
torch.save({**maker.state_dict(), **{f"j.{n}": p for n, p in judge.state_dict().items()}}, sys.argv[1])
