"""The big image classification example in small: meters in the training function, the best accuracy kept."""

import argparse
import shutil

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AverageMeter:
    """Computes and stores the average and current value."""

    def __init__(self, name):
        self.name = name
        self.reset()

    def reset(self):
        self.val, self.avg, self.sum, self.count = 0, 0, 0, 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def train(loader, model, criterion, optimizer, epoch, args):
    losses, top1 = AverageMeter("Loss"), AverageMeter("Acc@1")
    model.train()
    for i, (images, target) in enumerate(loader):
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), images.size(0))
        top1.update((output.argmax(1) == target).float().mean().item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % args.print_freq == 0:
            print(f"Epoch: [{epoch}][{i}/{len(loader)}] {losses.name} {losses.val:.4f} ({losses.avg:.4f})")
    return losses.avg, top1.avg


def validate(loader, model, args):
    top1 = AverageMeter("Acc@1")
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            top1.update((model(images).argmax(1) == target).float().mean().item(), images.size(0))
    return top1.avg


def adjust_learning_rate(optimizer, epoch, args):
    lr = args.lr * (0.1 ** (epoch // 2))
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--epochs", default=4, type=int)
    parser.add_argument("--lr", default=0.1, type=float)
    parser.add_argument("-p", "--print-freq", default=4, type=int)
    args = parser.parse_args()
    torch.manual_seed(5)
    data = TensorDataset(torch.randn(75, 12), torch.randint(0, 3, (75,)))
    train_loader = DataLoader(data, batch_size=8, shuffle=True)
    val_loader = DataLoader(data, batch_size=25)
    model = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    best_acc1, log = 0, []
    for epoch in range(args.epochs):
        adjust_learning_rate(optimizer, epoch, args)
        log.append(train(train_loader, model, nn.CrossEntropyLoss(), optimizer, epoch, args))
        acc1 = validate(val_loader, model, args)
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        torch.save({"epoch": epoch + 1, "state_dict": model.state_dict()}, "checkpoint.pth.tar")
        if is_best:
            shutil.copyfile("checkpoint.pth.tar", "model_best.pth.tar")
    torch.save({"state_dict": model.state_dict(), "best_acc1": best_acc1, "log": log}, args.out)


if __name__ == "__main__":
    main()
