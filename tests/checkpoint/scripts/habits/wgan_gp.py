"""A critic with a gradient penalty in every batch, a generator in every third."""

import sys

import torch
from torch import autograd, nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(15)
LAMBDA, N_CRITIC, LATENT = 10.0, 3, 3


def gradient_penalty(critic, real, fake):
    alpha = torch.rand(real.size(0), 1)
    between = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    score = critic(between)
    gradients = autograd.grad(
        outputs=score,
        inputs=between,
        grad_outputs=torch.ones_like(score),
        create_graph=True,
        retain_graph=True,
    )[0]
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


generator = nn.Sequential(nn.Linear(LATENT, 12), nn.ReLU(), nn.Linear(12, 2))
critic = nn.Sequential(nn.Linear(2, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1))
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
data = torch.rand(72, 2).sqrt()
loader = DataLoader(TensorDataset(data), batch_size=8, shuffle=True)

batches_done = 0
distances, g_losses = [], []
for epoch in range(4):
    for (real,) in loader:
        z = torch.randn(real.size(0), LATENT)
        fake = generator(z).detach()
        distance = critic(real).mean() - critic(fake).mean()
        c_loss = -distance + LAMBDA * gradient_penalty(critic, real, fake)
        opt_c.zero_grad()
        c_loss.backward()
        opt_c.step()
        distances.append(distance.item())

        if batches_done % N_CRITIC == 0:
            g_loss = -critic(generator(torch.randn(real.size(0), LATENT))).mean()
            opt_g.zero_grad()
            g_loss.backward()
            opt_g.step()
            g_losses.append(g_loss.item())
        batches_done += 1
    print(f"[Epoch {epoch}] [W distance: {distances[-1]:.4f}] [G loss: {g_losses[-1]:.4f}]")

told = {"distances": distances, "g_losses": g_losses, "done": batches_done}
torch.save({"generator": generator.state_dict(), "critic": critic.state_dict(), **told}, sys.argv[1])
