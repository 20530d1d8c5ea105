"""A siamese network: the data set draws its pairs with `random` when a row is asked for."""

import argparse
import random

import numpy as np
import torch
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.fc = nn.Sequential(nn.Linear(128, 16), nn.ReLU(inplace=True), nn.Linear(16, 1))
        self.sigmoid = nn.Sigmoid()
        self.fc.apply(self.init_weights)

    def init_weights(self, m):
        if isinstance(m, nn.Linear):
            torch.nn.init.xavier_uniform_(m.weight)
            m.bias.data.fill_(0.01)

    def forward(self, input1, input2):
        output = torch.cat((self.trunk(input1), self.trunk(input2)), 1)
        return self.sigmoid(self.fc(output))


class Matcher(Dataset):
    def __init__(self, count, seed):
        super().__init__()
        drawn = torch.Generator().manual_seed(seed)
        self.targets = torch.randint(0, 10, (count,), generator=drawn)
        noise = torch.randn(count, 6, 6, generator=drawn)
        self.data = (noise + self.targets.view(-1, 1, 1)).unsqueeze(1)
        self.group_examples()

    def group_examples(self):
        np_arr = np.array(self.targets.clone())
        self.grouped_examples = {}
        for i in range(10):
            self.grouped_examples[i] = np.where(np_arr == i)[0]

    def __len__(self):
        return self.data.shape[0]

    def __getitem__(self, index):
        selected_class = random.randint(0, 9)
        last = self.grouped_examples[selected_class].shape[0] - 1
        index_1 = self.grouped_examples[selected_class][random.randint(0, last)]
        image_1 = self.data[index_1].clone().float()
        if index % 2 == 0:
            index_2 = self.grouped_examples[selected_class][random.randint(0, last)]
            while index_2 == index_1 and last > 0:
                index_2 = self.grouped_examples[selected_class][random.randint(0, last)]
            target = torch.tensor(1, dtype=torch.float)
        else:
            other_selected_class = random.randint(0, 9)
            while other_selected_class == selected_class:
                other_selected_class = random.randint(0, 9)
            others = self.grouped_examples[other_selected_class]
            index_2 = others[random.randint(0, others.shape[0] - 1)]
            target = torch.tensor(0, dtype=torch.float)
        return image_1, self.data[index_2].clone().float(), target


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    criterion = nn.BCELoss()
    for batch_idx, (images_1, images_2, targets) in enumerate(train_loader):
        images_1, images_2, targets = images_1.to(device), images_2.to(device), targets.to(device)
        optimizer.zero_grad()
        outputs = model(images_1, images_2).squeeze()
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"Train Epoch: {epoch} [{batch_idx * len(images_1)}]\tLoss: {loss.item():.6f}")
            if args.dry_run:
                break


def test(model, device, test_loader):
    model.eval()
    test_loss = 0
    correct = 0
    criterion = nn.BCELoss()
    with torch.no_grad():
        for images_1, images_2, targets in test_loader:
            images_1, images_2, targets = images_1.to(device), images_2.to(device), targets.to(device)
            outputs = model(images_1, images_2).squeeze()
            test_loss += criterion(outputs, targets).sum().item()
            pred = torch.where(outputs > 0.5, 1, 0)
            correct += pred.eq(targets.view_as(pred)).sum().item()
    test_loss /= len(test_loader.dataset)
    print(f"\nTest set: Average loss: {test_loss:.4f}, Accuracy: {correct}/{len(test_loader.dataset)}\n")


def main():
    parser = argparse.ArgumentParser(description="pairs of digits")
    parser.add_argument("save_to")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--dry-run", action="store_true", default=False)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=4)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cpu")
    train_loader = DataLoader(Matcher(80, 0), shuffle=True, batch_size=args.batch_size)
    test_loader = DataLoader(Matcher(64, 1), batch_size=16)
    model = SiameseNetwork().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()
    torch.save(model.state_dict(), args.save_to)


if __name__ == "__main__":
    main()
