"""Two generators in a cycle: buffers of former fakes, chained parameters, LambdaLR, the time that is left."""

import argparse
import datetime
import itertools
import os
import random
import sys
import time

import torch
from torch import nn
from torch.autograd import Variable
from torch.utils.data import DataLoader, Dataset


class ReplayBuffer:
    def __init__(self, max_size=10):
        self.max_size = max_size
        self.data = []

    def push_and_pop(self, data):
        to_return = []
        for element in data.data:
            element = torch.unsqueeze(element, 0)
            if len(self.data) < self.max_size:
                self.data.append(element)
                to_return.append(element)
            elif random.uniform(0, 1) > 0.5:
                i = random.randint(0, self.max_size - 1)
                to_return.append(self.data[i].clone())
                self.data[i] = element
            else:
                to_return.append(element)
        return Variable(torch.cat(to_return))


class LambdaLR:
    def __init__(self, n_epochs, offset, decay_start_epoch):
        self.n_epochs = n_epochs
        self.offset = offset
        self.decay_start_epoch = decay_start_epoch

    def step(self, epoch):
        late = max(0, epoch + self.offset - self.decay_start_epoch)
        return 1.0 - late / (self.n_epochs - self.decay_start_epoch)


class ImageDataset(Dataset):
    def __init__(self, unaligned=True):
        given = torch.Generator().manual_seed(0)
        self.unaligned = unaligned
        self.files_A = torch.rand(20, 9, generator=given)
        self.files_B = torch.rand(24, 9, generator=given)

    def __getitem__(self, index):
        item_A = self.files_A[index % len(self.files_A)]
        at = random.randint(0, len(self.files_B) - 1) if self.unaligned else index % len(self.files_B)
        return {"A": item_A, "B": self.files_B[at]}

    def __len__(self):
        return max(len(self.files_A), len(self.files_B))


parser = argparse.ArgumentParser()
parser.add_argument("save_to")
parser.add_argument("--epoch", type=int, default=0)
parser.add_argument("--n_epochs", type=int, default=5)
parser.add_argument("--dataset_name", type=str, default="shapes")
parser.add_argument("--batch_size", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.0002)
parser.add_argument("--decay_epoch", type=int, default=2)
parser.add_argument("--sample_interval", type=int, default=10)
parser.add_argument("--checkpoint_interval", type=int, default=2)
opt = parser.parse_args()
os.makedirs(f"saved_models/{opt.dataset_name}", exist_ok=True)


def network(out):
    return nn.Sequential(nn.Linear(9, 12), nn.ReLU(), nn.Linear(12, out))


G_AB, G_BA, D_A, D_B = network(9), network(9), network(1), network(1)
criterion_GAN, criterion_cycle = nn.MSELoss(), nn.L1Loss()
optimizer_G = torch.optim.Adam(itertools.chain(G_AB.parameters(), G_BA.parameters()), lr=opt.lr)
optimizer_D_A = torch.optim.Adam(D_A.parameters(), lr=opt.lr)
optimizer_D_B = torch.optim.Adam(D_B.parameters(), lr=opt.lr)
decay = LambdaLR(opt.n_epochs, opt.epoch, opt.decay_epoch).step
lr_scheduler_G = torch.optim.lr_scheduler.LambdaLR(optimizer_G, lr_lambda=decay)
lr_scheduler_D_A = torch.optim.lr_scheduler.LambdaLR(optimizer_D_A, lr_lambda=decay)
lr_scheduler_D_B = torch.optim.lr_scheduler.LambdaLR(optimizer_D_B, lr_lambda=decay)
fake_A_buffer = ReplayBuffer()
fake_B_buffer = ReplayBuffer()
dataloader = DataLoader(ImageDataset(unaligned=True), batch_size=opt.batch_size, shuffle=True)
val_dataloader = DataLoader(ImageDataset(unaligned=True), batch_size=5, shuffle=True)


def sample_images(batches_done):
    imgs = next(iter(val_dataloader))
    G_AB.eval()
    G_BA.eval()
    with torch.no_grad():
        grid = torch.cat((G_AB(imgs["A"]), G_BA(imgs["B"])))
    torch.save(grid, f"saved_models/{batches_done}.pt")


prev_time = time.time()
for epoch in range(opt.epoch, opt.n_epochs):
    for i, batch in enumerate(dataloader):
        real_A = Variable(batch["A"])
        real_B = Variable(batch["B"])
        valid = torch.ones(real_A.size(0), 1)
        fake = torch.zeros(real_A.size(0), 1)
        G_AB.train()
        G_BA.train()
        optimizer_G.zero_grad()
        fake_B = G_AB(real_A)
        fake_A = G_BA(real_B)
        loss_GAN = (criterion_GAN(D_B(fake_B), valid) + criterion_GAN(D_A(fake_A), valid)) / 2
        loss_cycle = (criterion_cycle(G_BA(fake_B), real_A) + criterion_cycle(G_AB(fake_A), real_B)) / 2
        loss_G = loss_GAN + 10.0 * loss_cycle
        loss_G.backward()
        optimizer_G.step()

        optimizer_D_A.zero_grad()
        fake_A_ = fake_A_buffer.push_and_pop(fake_A)
        loss_D_A = (criterion_GAN(D_A(real_A), valid) + criterion_GAN(D_A(fake_A_.detach()), fake)) / 2
        loss_D_A.backward()
        optimizer_D_A.step()
        optimizer_D_B.zero_grad()
        fake_B_ = fake_B_buffer.push_and_pop(fake_B)
        loss_D_B = (criterion_GAN(D_B(real_B), valid) + criterion_GAN(D_B(fake_B_.detach()), fake)) / 2
        loss_D_B.backward()
        optimizer_D_B.step()

        batches_done = epoch * len(dataloader) + i
        batches_left = opt.n_epochs * len(dataloader) - batches_done
        time_left = datetime.timedelta(seconds=batches_left * (time.time() - prev_time))
        prev_time = time.time()
        sys.stdout.write(f"\r[Epoch {epoch}/{opt.n_epochs}] [G loss: {loss_G.item():f}] ETA: {time_left}")
        if batches_done % opt.sample_interval == 0:
            sample_images(batches_done)
    lr_scheduler_G.step()
    lr_scheduler_D_A.step()
    lr_scheduler_D_B.step()
    if opt.checkpoint_interval != -1 and epoch % opt.checkpoint_interval == 0:
        torch.save(G_AB.state_dict(), f"saved_models/{opt.dataset_name}/G_AB_{epoch}.pth")
        torch.save(D_A.state_dict(), f"saved_models/{opt.dataset_name}/D_A_{epoch}.pth")

torch.save({"G": G_AB.state_dict(), "D": D_B.state_dict(), "buffer": fake_A_buffer.data}, opt.save_to)
