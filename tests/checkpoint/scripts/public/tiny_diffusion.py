"""A small diffusion of points: a scheduler of tensors, a bar moved by hand, losses and frames."""

import argparse
import os

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.ff = nn.Linear(size, size)
        self.act = nn.GELU()

    def forward(self, x):
        return x + self.act(self.ff(x))


class MLP(nn.Module):
    def __init__(self, hidden_size=16, hidden_layers=2, emb_size=4):
        super().__init__()
        self.emb_size = emb_size
        layers = [nn.Linear(2 + emb_size, hidden_size), nn.GELU()]
        for _ in range(hidden_layers):
            layers.append(Block(hidden_size))
        layers.append(nn.Linear(hidden_size, 2))
        self.joint_mlp = nn.Sequential(*layers)

    def forward(self, x, t):
        t = t.unsqueeze(-1) * torch.exp(-torch.arange(self.emb_size // 2) * 2.0)
        return self.joint_mlp(torch.cat((x, torch.sin(t), torch.cos(t)), dim=-1))


class NoiseScheduler:
    def __init__(self, num_timesteps=1000, beta_start=0.0001, beta_end=0.02, beta_schedule="linear"):
        self.num_timesteps = num_timesteps
        if beta_schedule == "linear":
            self.betas = torch.linspace(beta_start, beta_end, num_timesteps, dtype=torch.float32)
        elif beta_schedule == "quadratic":
            self.betas = torch.linspace(beta_start**0.5, beta_end**0.5, num_timesteps) ** 2
        self.alphas = 1.0 - self.betas
        self.alphas_cumprod = torch.cumprod(self.alphas, axis=0)
        self.alphas_cumprod_prev = F.pad(self.alphas_cumprod[:-1], (1, 0), value=1.0)
        self.sqrt_alphas_cumprod = self.alphas_cumprod**0.5
        self.sqrt_one_minus_alphas_cumprod = (1 - self.alphas_cumprod) ** 0.5

    def step(self, model_output, timestep, sample):
        s = self.sqrt_one_minus_alphas_cumprod[timestep]
        first = (sample - s * model_output) / self.sqrt_alphas_cumprod[timestep]
        kept = self.alphas_cumprod_prev[timestep] ** 0.5
        return kept * first + (1 - kept) * 0.1 * torch.randn_like(model_output)

    def add_noise(self, x_start, x_noise, timesteps):
        s1 = self.sqrt_alphas_cumprod[timesteps].reshape(-1, 1)
        s2 = self.sqrt_one_minus_alphas_cumprod[timesteps].reshape(-1, 1)
        return s1 * x_start + s2 * x_noise

    def __len__(self):
        return self.num_timesteps


def moons(n):
    rng = np.random.default_rng(42)
    angle = rng.uniform(0, np.pi, n)
    points = np.stack((np.cos(angle), np.sin(angle)), axis=1) + rng.normal(0, 0.05, (n, 2))
    return TensorDataset(torch.from_numpy(points.astype(np.float32)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("save_to")
    parser.add_argument("--train_batch_size", type=int, default=8)
    parser.add_argument("--eval_batch_size", type=int, default=10)
    parser.add_argument("--num_epochs", type=int, default=5)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--num_timesteps", type=int, default=6)
    parser.add_argument("--beta_schedule", type=str, default="linear", choices=["linear", "quadratic"])
    parser.add_argument("--save_images_step", type=int, default=2)
    config = parser.parse_args()

    dataset = moons(60)
    dataloader = DataLoader(dataset, batch_size=config.train_batch_size, shuffle=True, drop_last=True)
    model = MLP()
    noise_scheduler = NoiseScheduler(num_timesteps=config.num_timesteps, beta_schedule=config.beta_schedule)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)

    global_step = 0
    frames = []
    losses = []
    print("Training model...")
    for epoch in range(config.num_epochs):
        model.train()
        progress_bar = tqdm(total=len(dataloader))
        progress_bar.set_description(f"Epoch {epoch}")
        for step, batch in enumerate(dataloader):
            batch = batch[0]
            noise = torch.randn(batch.shape)
            timesteps = torch.randint(0, noise_scheduler.num_timesteps, (batch.shape[0],)).long()
            noisy = noise_scheduler.add_noise(batch, noise, timesteps)
            noise_pred = model(noisy, timesteps)
            loss = F.mse_loss(noise_pred, noise)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            progress_bar.update(1)
            logs = {"loss": loss.detach().item(), "step": global_step}
            losses.append(loss.detach().item())
            progress_bar.set_postfix(**logs)
            global_step += 1
        progress_bar.close()
        if epoch % config.save_images_step == 0 or epoch == config.num_epochs - 1:
            model.eval()
            sample = torch.randn(config.eval_batch_size, 2)
            timesteps = list(range(len(noise_scheduler)))[::-1]
            for i, t in enumerate(tqdm(timesteps)):
                t = torch.from_numpy(np.repeat(t, config.eval_batch_size)).long()
                with torch.no_grad():
                    residual = model(sample, t)
                sample = noise_scheduler.step(residual, t[0], sample)
            frames.append(sample.numpy())

    print("Saving loss as numpy array...")
    os.makedirs("exps", exist_ok=True)
    np.save("exps/loss.npy", np.array(losses))
    np.save("exps/frames.npy", np.stack(frames))
    torch.save({"model": model.state_dict(), "losses": losses, "frames": np.stack(frames)}, config.save_to)
