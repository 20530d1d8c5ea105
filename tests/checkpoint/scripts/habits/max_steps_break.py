"""Epochs and batches, and both loops are left when enough steps are done."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(23)
    loader = DataLoader(TensorDataset(torch.randn(100, 5), torch.randn(100, 3)), batch_size=10, shuffle=True)
    model = nn.Linear(5, 3)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    max_steps, global_step, done = 38, 0, False
    tr_loss, logged = 0.0, []
    for epoch in range(10):
        for step, batch in enumerate(loader):
            model.train()
            inputs, labels = batch
            loss = nn.functional.mse_loss(model(inputs), labels)
            loss.backward()
            tr_loss += loss.item()
            optimizer.step()
            model.zero_grad()
            global_step += 1
            if global_step % 8 == 0:
                logged.append(tr_loss / global_step)
                print(f"epoch {epoch} step {step} global {global_step} loss {logged[-1]:.4f}")
            if global_step >= max_steps:
                done = True
                break
        if done:
            break
    torch.save({"model": model.state_dict(), "global_step": global_step, "logged": logged}, sys.argv[1])


if __name__ == "__main__":
    main()
