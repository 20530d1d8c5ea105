"""Pairs of sentences: an iterator object with `init_epoch`, snapshots that replace those before."""

import glob
import os
import sys
import time

import torch
from torch import nn, optim


class Batch:
    def __init__(self, premise, hypothesis, label):
        self.premise, self.hypothesis, self.label = premise, hypothesis, label
        self.batch_size = len(label)


class BucketIterator:
    """As text libraries had them: it knows in which batch it is."""

    def __init__(self, rows, batch_size, train):
        self.rows, self.batch_size, self.train = rows, batch_size, train
        self.iterations = 0
        self.order = torch.arange(len(rows[2]))

    def __len__(self):
        return (len(self.rows[2]) + self.batch_size - 1) // self.batch_size

    def init_epoch(self):
        self.iterations = 0
        if self.train:
            self.order = torch.randperm(len(self.rows[2]))

    def __iter__(self):
        for at in range(0, len(self.order), self.batch_size):
            chosen = self.order[at : at + self.batch_size]
            self.iterations += 1
            yield Batch(*(column[chosen] for column in self.rows))


class SNLIClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.rnn = nn.LSTM(6, 6, batch_first=True)
        self.out = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))

    def forward(self, batch):
        premise = self.rnn(self.embed(batch.premise))[1][0][-1]
        hypothesis = self.rnn(self.embed(batch.hypothesis))[1][0][-1]
        return self.out(torch.cat([premise, hypothesis], 1))


def rows(count, seed):
    g = torch.Generator().manual_seed(seed)
    words = [torch.randint(0, 20, (count, 5), generator=g) for _ in range(2)]
    return [*words, torch.randint(0, 3, (count,), generator=g)]


epochs, log_every, dev_every, save_every, save_path = 4, 5, 10, 10, "snapshots"
train_iter = BucketIterator(rows(90, 0), 8, train=True)
dev_iter = BucketIterator(rows(40, 1), 8, train=False)
model = SNLIClassifier()
criterion = nn.CrossEntropyLoss()
opt = optim.Adam(model.parameters(), lr=0.01)
iterations = 0
start = time.time()
best_dev_acc = -1
os.makedirs(save_path, exist_ok=True)

for epoch in range(epochs):
    train_iter.init_epoch()
    n_correct, n_total = 0, 0
    for batch_idx, batch in enumerate(train_iter):
        model.train()
        opt.zero_grad()
        iterations += 1
        answer = model(batch)
        n_correct += (torch.max(answer, 1)[1].view(batch.label.size()) == batch.label).sum().item()
        n_total += batch.batch_size
        train_acc = 100.0 * n_correct / n_total
        loss = criterion(answer, batch.label)
        loss.backward()
        opt.step()
        if iterations % save_every == 0:
            snapshot_prefix = os.path.join(save_path, "snapshot")
            snapshot_path = snapshot_prefix + f"_acc_{train_acc:.4f}_iter_{iterations}_model.pt"
            torch.save(model.state_dict(), snapshot_path)
            for name in glob.glob(snapshot_prefix + "*"):
                if name != snapshot_path:
                    os.remove(name)
        if iterations % dev_every == 0:
            model.eval()
            dev_iter.init_epoch()
            n_dev_correct = 0
            with torch.no_grad():
                for dev_batch in dev_iter:
                    answer = model(dev_batch)
                    n_dev_correct += (torch.max(answer, 1)[1] == dev_batch.label).sum().item()
            dev_acc = 100.0 * n_dev_correct / 40
            print(f"{time.time() - start:6.2f} s {epoch} {iterations} {loss.item():8.6f} {dev_acc:.4f}")
            if dev_acc > best_dev_acc:
                best_dev_acc = dev_acc
                torch.save(model.state_dict(), os.path.join(save_path, "best_snapshot.pt"))
        elif iterations % log_every == 0:
            print(f"{time.time() - start:6.2f} s {epoch} {iterations} {loss.item():8.6f} {train_acc:.4f}")

torch.save({"model": model.state_dict(), "best": best_dev_acc, "iterations": iterations}, sys.argv[1])
