"""A dataclass for all settings, handed to every function; the functions have what they need."""

import random
import sys
from dataclasses import asdict, dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    seed: int = 45
    epochs: int = 4
    batch_size: int = 8
    lr: float = 2e-3
    hidden: tuple = (16, 16)
    dropout: float = 0.1
    betas: tuple = field(default_factory=lambda: (0.9, 0.98))


def set_seed(cfg):
    random.seed(cfg.seed)
    torch.manual_seed(cfg.seed)


def build_model(cfg, inputs, outputs):
    layers, width = [], inputs
    for hidden in cfg.hidden:
        layers += [nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Dropout(cfg.dropout)]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def main():
    cfg = Config()
    set_seed(cfg)
    data = TensorDataset(torch.randn(70, 8), torch.randint(0, 4, (70,)))
    loader = DataLoader(data, batch_size=cfg.batch_size, shuffle=True, drop_last=True)
    model = build_model(cfg, 8, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr, betas=cfg.betas)
    seen, epoch_losses = 0, []
    for epoch in range(cfg.epochs):
        epoch_loss = 0.0
        for x, y in loader:
            if random.random() < 0.5:
                x = x.flip(1)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item() * len(x)
            seen += len(x)
        epoch_losses.append(epoch_loss / (len(loader) * cfg.batch_size))
        print(f"{epoch=} loss={epoch_losses[-1]:.4f} {seen=}")
    result = {"config": asdict(cfg), "model": model.state_dict(), "seen": seen, "losses": epoch_losses}
    torch.save(result, sys.argv[1])


if __name__ == "__main__":
    main()
