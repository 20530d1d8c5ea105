"""The options are also where counters are kept; functions call them opt, the main program args."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_one_epoch(model, loader, optimizer, opt):
    model.train()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        opt.global_step += 1
        if loss.item() < opt.best_loss:
            opt.best_loss = loss.item()
            opt.best_step = opt.global_step
        if opt.global_step % opt.print_every == 0:
            print(f"step {opt.global_step} loss {loss.item():.4f} best {opt.best_loss:.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--print-every", type=int, default=10)
    args = parser.parse_args()
    args.global_step, args.best_loss, args.best_step = 0, float("inf"), 0
    torch.manual_seed(117)
    data = TensorDataset(torch.randn(64, 6), torch.randint(0, 4, (64,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(args.epochs):
        train_one_epoch(model, loader, optimizer, args)
    told = {"step": args.global_step, "best_loss": args.best_loss, "best_step": args.best_step}
    torch.save({"model": model.state_dict(), **told}, args.out)


if __name__ == "__main__":
    main()
