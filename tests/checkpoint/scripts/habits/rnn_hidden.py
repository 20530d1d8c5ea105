"""A hidden state that goes from batch to batch, cut off from the graph each time."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


class Net(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.lstm = nn.LSTM(1, width, batch_first=True)
        self.out = nn.Linear(width, 1)

    def forward(self, x, hidden):
        y, hidden = self.lstm(x, hidden)
        return self.out(y), hidden


torch.manual_seed(94)
signal = torch.sin(torch.arange(0, 40.5, 0.05)) + 0.05 * torch.randn(810)
columns = signal[:800].view(4, 200)
inputs = columns[:, :-1].unfold(1, 19, 18).transpose(0, 1).reshape(-1, 19)
loader = DataLoader(TensorDataset(inputs), batch_size=4)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
hidden = (torch.zeros(1, 4, 10), torch.zeros(1, 4, 10))
losses = []

for epoch in range(4):
    for (piece,) in loader:
        hidden = repackage_hidden(hidden)
        x, y = piece[:, :-1].unsqueeze(2), piece[:, 1:].unsqueeze(2)
        prediction, hidden = model(x, hidden)
        loss = nn.functional.mse_loss(prediction, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: {losses[-1]:.5f}")

torch.save({"model": model.state_dict(), "losses": losses, "hidden": hidden[0].detach()}, sys.argv[1])
