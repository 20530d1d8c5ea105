"""Goes on from last.pt by itself, with optimizer, scheduler, best and history."""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINT = "last.pt"


def main():
    torch.manual_seed(37)
    x, y = torch.randn(64, 5), torch.randint(0, 3, (64,))
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    start_epoch, best_acc, history = 0, 0.0, []
    if os.path.isfile(CHECKPOINT):
        print(f"=> loading checkpoint '{CHECKPOINT}'")
        checkpoint = torch.load(CHECKPOINT)
        start_epoch = checkpoint["epoch"]
        best_acc = checkpoint["best_acc"]
        history = checkpoint["history"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
    for epoch in range(start_epoch, 5):
        model.train()
        for data, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
        scheduler.step()
        model.eval()
        with torch.no_grad():
            acc = (model(x).argmax(1) == y).float().mean().item()
        best_acc = max(acc, best_acc)
        history.append(acc)
        state = {
            "epoch": epoch + 1,
            "state_dict": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "best_acc": best_acc,
            "history": history,
        }
        torch.save(state, CHECKPOINT)
        print(f"epoch {epoch}: accuracy {acc:.3f}, best {best_acc:.3f}")
    torch.save({"model": model.state_dict(), "best_acc": best_acc, "history": history}, sys.argv[1])


main()
