"""The main file of a project, whose loop over batches is in training_engine.py."""

import argparse

import torch
import training_engine as engine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_args_parser():
    parser = argparse.ArgumentParser("training", add_help=False)
    parser.add_argument("output")
    parser.add_argument("--epochs", default=4, type=int)
    parser.add_argument("--seed", default=106, type=int)
    parser.add_argument("--clip-max-norm", default=0.5, type=float)
    return parser


def main(args):
    torch.manual_seed(args.seed)
    x, y = torch.randn(72, 6), torch.randn(72, 1)
    train_loader = DataLoader(TensorDataset(x[:56], y[:56]), batch_size=7, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[56:], y[56:]), batch_size=8)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 1))
    criterion = nn.MSELoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    lr_scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2], gamma=0.1)
    stats = []
    for epoch in range(args.epochs):
        train_loss = engine.train_one_epoch(model, criterion, train_loader, optimizer, args.clip_max_norm)
        lr_scheduler.step()
        val_loss = engine.evaluate(model, criterion, val_loader)
        stats.append({"epoch": epoch, "train_loss": train_loss, "val_loss": val_loss})
        print(stats[-1])
    torch.save({"model": model.state_dict(), "stats": stats}, args.output)


if __name__ == "__main__":
    main(argparse.ArgumentParser("training script", parents=[get_args_parser()]).parse_args())
