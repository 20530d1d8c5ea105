"""A loop whose author has forgotten zero_grad: the gradients of all batches add up."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(53)
x = torch.randn(64, 4)
y = x @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]])
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loss_values = []

for epoch in range(5):
    for batch_x, batch_y in loader:
        prediction = model(batch_x)
        loss = nn.functional.mse_loss(prediction, batch_y)
        loss.backward()
        optimizer.step()
    loss_values.append(loss.item())
    print(f"Epoch {epoch}, Loss: {loss.item():.4f}")

torch.save({"model": model.state_dict(), "loss_values": loss_values}, sys.argv[1])
