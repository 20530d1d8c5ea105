"""A Trainer over an endless generator of batches, with an averaged model, a bar and samples at milestones."""

import sys
from copy import deepcopy
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


def exists(x):
    return x is not None


def cycle(dl):
    while True:
        for data in dl:
            yield data


class EMA:
    def __init__(self, model, beta=0.995, update_every=2):
        self.online_model = model
        self.ema_model = deepcopy(model)
        self.beta = beta
        self.update_every = update_every
        self.step = 0

    def update(self):
        self.step += 1
        if self.step % self.update_every == 0:
            for ours, theirs in zip(self.ema_model.parameters(), self.online_model.parameters()):
                ours.data.lerp_(theirs.data, 1.0 - self.beta)


class GaussianDiffusion(nn.Module):
    def __init__(self, model, *, size, timesteps=20):
        super().__init__()
        self.model = model
        self.size = size
        self.num_timesteps = timesteps
        alphas_cumprod = torch.cumprod(1.0 - torch.linspace(1e-4, 0.1, timesteps), dim=0)
        self.register_buffer("sqrt_alphas_cumprod", torch.sqrt(alphas_cumprod))
        self.register_buffer("sqrt_one_minus", torch.sqrt(1.0 - alphas_cumprod))

    @torch.inference_mode()
    def sample(self, batch_size=2):
        img = torch.randn(batch_size, self.size)
        for t in reversed(range(0, self.num_timesteps, 5)):
            noise = self.model(torch.cat((img, torch.full((batch_size, 1), float(t))), dim=1))
            img = (img - self.sqrt_one_minus[t] * noise) / self.sqrt_alphas_cumprod[t]
        return img

    def forward(self, img):
        t = torch.randint(0, self.num_timesteps, (img.shape[0],)).long()
        noise = torch.randn_like(img)
        x = self.sqrt_alphas_cumprod[t, None] * img + self.sqrt_one_minus[t, None] * noise
        return F.mse_loss(self.model(torch.cat((x, t[:, None].float()), dim=1)), noise)


class Trainer:
    def __init__(self, diffusion_model, dataset, *, train_num_steps=40, gradient_accumulate_every=2):
        self.model = diffusion_model
        self.gradient_accumulate_every = gradient_accumulate_every
        self.train_num_steps = train_num_steps
        self.save_and_sample_every = 10
        self.dl = cycle(DataLoader(dataset, batch_size=8, shuffle=True))
        self.opt = Adam(diffusion_model.parameters(), lr=1e-3, betas=(0.9, 0.99))
        self.ema = EMA(diffusion_model)
        self.results_folder = Path("./results")
        self.results_folder.mkdir(exist_ok=True)
        self.step = 0

    def save(self, milestone):
        data = {"step": self.step, "model": self.model.state_dict(), "opt": self.opt.state_dict()}
        torch.save(data, str(self.results_folder / f"model-{milestone}.pt"))

    def train(self):
        with tqdm(initial=self.step, total=self.train_num_steps) as pbar:
            while self.step < self.train_num_steps:
                self.model.train()
                total_loss = 0.0
                for _ in range(self.gradient_accumulate_every):
                    (data,) = next(self.dl)
                    loss = self.model(data)
                    loss = loss / self.gradient_accumulate_every
                    total_loss += loss.item()
                    loss.backward()
                pbar.set_description(f"loss: {total_loss:.4f}")
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.opt.step()
                self.opt.zero_grad()
                self.step += 1
                self.ema.update()
                if self.step != 0 and self.step % self.save_and_sample_every == 0:
                    self.ema.ema_model.eval()
                    milestone = self.step // self.save_and_sample_every
                    torch.save(
                        self.ema.ema_model.sample(), str(self.results_folder / f"sample-{milestone}.pt")
                    )
                    self.save(milestone)
                pbar.update(1)
        print("training complete")


pictures = torch.rand(52, 9, generator=torch.Generator().manual_seed(0))
model = nn.Sequential(nn.Linear(10, 16), nn.SiLU(), nn.Linear(16, 9))
trainer = Trainer(GaussianDiffusion(model, size=9), TensorDataset(pictures))
trainer.train()
torch.save({"model": trainer.model.state_dict(), "ema": trainer.ema.ema_model.state_dict()}, sys.argv[1])
