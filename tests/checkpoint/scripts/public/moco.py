"""Momentum contrast: a key encoder, a queue with a pointer in buffers, a rate by the epoch."""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class TwoCrops(Dataset):
    def __init__(self):
        self.rows = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return [self.rows[index] + 0.1 * torch.randn(6), self.rows[index] + 0.1 * torch.randn(6)], index


class MoCo(nn.Module):
    def __init__(self, dim=5, K=32, m=0.99, T=0.07):
        super().__init__()
        self.K, self.m, self.T = K, m, T
        self.encoder_q = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, dim))
        self.encoder_k = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, dim))
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data.copy_(param_q.data)
            param_k.requires_grad = False
        self.register_buffer("queue", nn.functional.normalize(torch.randn(dim, K), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data = param_k.data * self.m + param_q.data * (1.0 - self.m)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        ptr = int(self.queue_ptr)
        self.queue[:, ptr : ptr + keys.shape[0]] = keys.T
        self.queue_ptr[0] = (ptr + keys.shape[0]) % self.K

    def forward(self, im_q, im_k):
        q = nn.functional.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            k = nn.functional.normalize(self.encoder_k(im_k), dim=1)
        l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([l_pos, l_neg], dim=1) / self.T
        labels = torch.zeros(logits.shape[0], dtype=torch.long)
        self._dequeue_and_enqueue(k)
        return logits, labels


def adjust_learning_rate(optimizer, epoch, args):
    lr = args.lr * 0.5 * (1.0 + math.cos(math.pi * epoch / args.epochs))
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr


def train(train_loader, model, criterion, optimizer, epoch, args):
    model.train()
    for i, (images, _) in enumerate(train_loader):
        output, target = model(im_q=images[0], im_k=images[1])
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % args.print_freq == 0:
            print(f"Epoch: [{epoch}][{i}/{len(train_loader)}]\tLoss {loss.item():.4e}")


parser = argparse.ArgumentParser(description="unsupervised training")
parser.add_argument("save_to")
parser.add_argument("--epochs", default=4, type=int)
parser.add_argument("--lr", default=0.03, type=float)
parser.add_argument("--print-freq", default=4, type=int)
args = parser.parse_args()
model = MoCo()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
train_loader = DataLoader(TwoCrops(), batch_size=8, shuffle=True, drop_last=True)
for epoch in range(args.epochs):
    adjust_learning_rate(optimizer, epoch, args)
    train(train_loader, model, criterion, optimizer, epoch, args)
    state = {"epoch": epoch + 1, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, f"checkpoint_{epoch:04d}.pth.tar")
torch.save(model.state_dict(), args.save_to)
