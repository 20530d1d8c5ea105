"""A small GAN with two optimizers, fixed noise, and lists of losses."""

import sys

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(999)
nz, real_label, fake_label, num_epochs = 4, 1.0, 0.0, 4
points = torch.randn(70, 2) * torch.tensor([1.0, 0.3]) + 2.0
dataloader = DataLoader(TensorDataset(points), batch_size=8, shuffle=True)
netG = nn.Sequential(nn.Linear(nz, 16), nn.BatchNorm1d(16), nn.ReLU(True), nn.Linear(16, 2))
netD = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())


def weights_init(m):
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight.data, 0.0, 0.2)


netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCELoss()
fixed_noise = torch.randn(6, nz)
optimizerD = optim.Adam(netD.parameters(), lr=0.002, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=0.002, betas=(0.5, 0.999))
pictures, G_losses, D_losses, iters = [], [], [], 0

print("Starting Training Loop...")
for epoch in range(num_epochs):
    for i, data in enumerate(dataloader, 0):
        netD.zero_grad()
        real = data[0]
        label = torch.full((real.size(0),), real_label)
        errD_real = criterion(netD(real).view(-1), label)
        errD_real.backward()
        noise = torch.randn(real.size(0), nz)
        fake = netG(noise)
        label.fill_(fake_label)
        errD_fake = criterion(netD(fake.detach()).view(-1), label)
        errD_fake.backward()
        errD = errD_real + errD_fake
        optimizerD.step()

        netG.zero_grad()
        label.fill_(real_label)
        errG = criterion(netD(fake).view(-1), label)
        errG.backward()
        optimizerG.step()

        if i % 4 == 0:
            print(f"[{epoch}/{num_epochs}][{i}/{len(dataloader)}] D: {errD.item():.4f} G: {errG.item():.4f}")
        G_losses.append(errG.item())
        D_losses.append(errD.item())
        if (iters % 12 == 0) or ((epoch == num_epochs - 1) and (i == len(dataloader) - 1)):
            with torch.no_grad():
                pictures.append(netG(fixed_noise).detach())
        iters += 1

losses = {"G": G_losses, "D": D_losses, "iters": iters, "pictures": pictures}
torch.save({"netG": netG.state_dict(), "netD": netD.state_dict(), **losses}, sys.argv[1])
