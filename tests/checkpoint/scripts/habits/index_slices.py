"""A permutation per epoch and slices of it: for i in range(0, n, batch_size)."""

import sys

import torch
from torch import nn

torch.manual_seed(116)
n, batch_size, n_epochs = 96, 10, 4
X = torch.randn(n, 8)
y = (X @ torch.randn(8, 1)).tanh()
X_test, y_test = X[80:], y[80:]
X_train, y_train = X[:80], y[:80]
model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1))
loss_fn = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
best_mse, history = float("inf"), []

for epoch in range(n_epochs):
    model.train()
    permutation = torch.randperm(len(X_train))
    for i in range(0, len(X_train), batch_size):
        rows = permutation[i : i + batch_size]
        loss = loss_fn(model(X_train[rows]), y_train[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        mse = loss_fn(model(X_test), y_test).item()
    history.append(mse)
    best_mse = min(best_mse, mse)
    print(f"epoch {epoch}: MSE {mse:.4f}")

torch.save({"model": model.state_dict(), "history": history, "best_mse": best_mse}, sys.argv[1])
