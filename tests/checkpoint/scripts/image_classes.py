"""Training and testing in functions of their own, with options, a dry run and a scheduler."""

import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset


def train(args, model, loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = torch.nn.functional.nll_loss(torch.log_softmax(model(data), 1), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"epoch {epoch} batch {batch_idx} loss {loss.item():.4f}")
            if args.dry_run:
                break


def test(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for data, target in loader:
            right += int((model(data).argmax(1) == target).sum())
    print(f"right: {right}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--num-workers", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(120, 16), torch.randint(0, 4, (120,)))
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=args.num_workers)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.Adadelta(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    for epoch in range(1, args.epochs + 1):
        train(args, model, loader, optimizer, epoch)
        test(model, loader)
        scheduler.step()


if __name__ == "__main__":
    main()
