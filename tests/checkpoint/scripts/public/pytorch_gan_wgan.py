"""A Wasserstein GAN of the same collections: weights are clipped, the generator learns every few batches."""

import argparse
import os

import numpy as np
import torch
from torch import nn
from torch.autograd import Variable
from torch.utils.data import DataLoader, TensorDataset

os.makedirs("images", exist_ok=True)
parser = argparse.ArgumentParser()
parser.add_argument("save_to")
parser.add_argument("--n_epochs", type=int, default=4)
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.00005)
parser.add_argument("--latent_dim", type=int, default=6)
parser.add_argument("--n_critic", type=int, default=3)
parser.add_argument("--clip_value", type=float, default=0.01)
parser.add_argument("--sample_interval", type=int, default=9)
opt = parser.parse_args()
print(opt)

generator = nn.Sequential(nn.Linear(opt.latent_dim, 12), nn.LeakyReLU(0.2, inplace=True), nn.Linear(12, 9))
discriminator = nn.Sequential(nn.Linear(9, 12), nn.LeakyReLU(0.2, inplace=True), nn.Linear(12, 1))
pictures = torch.rand(72, 9, generator=torch.Generator().manual_seed(0))
dataloader = DataLoader(TensorDataset(pictures, torch.zeros(72)), batch_size=opt.batch_size, shuffle=True)
optimizer_G = torch.optim.RMSprop(generator.parameters(), lr=opt.lr)
optimizer_D = torch.optim.RMSprop(discriminator.parameters(), lr=opt.lr)
Tensor = torch.FloatTensor

batches_done = 0
for epoch in range(opt.n_epochs):
    for i, (imgs, _) in enumerate(dataloader):
        real_imgs = Variable(imgs.type(Tensor))
        optimizer_D.zero_grad()
        z = Variable(Tensor(np.random.normal(0, 1, (imgs.shape[0], opt.latent_dim))))
        fake_imgs = generator(z).detach()
        loss_D = -torch.mean(discriminator(real_imgs)) + torch.mean(discriminator(fake_imgs))
        loss_D.backward()
        optimizer_D.step()
        for p in discriminator.parameters():
            p.data.clamp_(-opt.clip_value, opt.clip_value)

        if i % opt.n_critic == 0:
            optimizer_G.zero_grad()
            gen_imgs = generator(z)
            loss_G = -torch.mean(discriminator(gen_imgs))
            loss_G.backward()
            optimizer_G.step()
            print(f"[Epoch {epoch}/{opt.n_epochs}] [D loss: {loss_D.item():f}] [G loss: {loss_G.item():f}]")
        if batches_done % opt.sample_interval == 0:
            torch.save(gen_imgs.data[:4], f"images/{batches_done}.pt")
        batches_done += 1

torch.save({"G": generator.state_dict(), "D": discriminator.state_dict(), "done": batches_done}, opt.save_to)
