"""The loops of a project, in a file of their own."""

import torch


def train_one_epoch(model, criterion, loader, optimizer, clip=1.0):
    model.train()
    total, count = 0.0, 0
    for samples, targets in loader:
        loss = criterion(model(samples), targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        total += loss.item() * len(samples)
        count += len(samples)
    return total / count


@torch.no_grad()
def evaluate(model, criterion, loader):
    model.eval()
    losses = [criterion(model(samples), targets).item() for samples, targets in loader]
    return sum(losses) / len(losses)
