"""A temperature that cools down after every step, kept as an attribute of the model."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class GumbelEncoder(nn.Module):
    def __init__(self, codes=6, width=10):
        super().__init__()
        self.tau = 1.0
        self.encode = nn.Linear(width, codes)
        self.decode = nn.Linear(codes, width)

    def forward(self, x):
        code = F.gumbel_softmax(self.encode(x), tau=self.tau, hard=False)
        return self.decode(code)


torch.manual_seed(81)
loader = DataLoader(TensorDataset(torch.randn(64, 10)), batch_size=8, shuffle=True)
model = GumbelEncoder()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
losses = []

for epoch in range(4):
    for (x,) in loader:
        loss = F.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.tau = max(0.3, model.tau * 0.96)
        losses.append(loss.item())
    print(f"epoch {epoch}: tau {model.tau:.3f}, loss {losses[-1]:.4f}")

torch.save({"model": model.state_dict(), "tau": model.tau, "losses": losses}, sys.argv[1])
