"""A stateful LSTM that keeps its hidden state inside, reset at the start of each epoch."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class StatefulLSTM(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.lstm = nn.LSTM(features, width, batch_first=True)
        self.linear = nn.Linear(width, 1)
        self.hidden = None

    def reset_hidden_state(self):
        self.hidden = None

    def forward(self, x):
        if self.hidden is not None:
            self.hidden = tuple(h.detach() for h in self.hidden)
        out, self.hidden = self.lstm(x, self.hidden)
        return self.linear(out[:, -1])


torch.manual_seed(95)
prices = torch.cumsum(torch.randn(200), 0) / 10
windows = prices.unfold(0, 9, 2)[:90]
x, y = windows[:, :-1].unsqueeze(2), windows[:, -1:]
loader = DataLoader(TensorDataset(x, y), batch_size=10, shuffle=False, drop_last=True)
model = StatefulLSTM(1, 8)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for epoch in range(5):
    model.reset_hidden_state()
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {losses[-1]:.5f}")
torch.save({"model": model.state_dict(), "losses": losses}, sys.argv[1])
