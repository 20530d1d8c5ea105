"""An image is what is trained: a tensor that asks for gradients, in an optimizer made of a list."""

import argparse

import torch
from torch import nn


class VGGNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.select = ["0", "2"]
        self.vgg = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 3, padding=1))

    def forward(self, x):
        features = []
        for name, layer in self.vgg._modules.items():
            x = layer(x)
            if name in self.select:
                features.append(x)
        return features


def main(config):
    given = torch.Generator().manual_seed(0)
    content = torch.rand(1, 3, 8, 8, generator=given)
    style = torch.rand(1, 3, 8, 8, generator=given)
    target = content.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([target], lr=config.lr, betas=[0.5, 0.999])
    vgg = VGGNet().eval()
    for step in range(config.total_step):
        target_features = vgg(target)
        content_features = vgg(content)
        style_features = vgg(style)
        style_loss = 0
        content_loss = 0
        for f1, f2, f3 in zip(target_features, content_features, style_features):
            content_loss += torch.mean((f1 - f2) ** 2)
            _, c, h, w = f1.size()
            f1 = f1.view(c, h * w)
            f3 = f3.view(c, h * w)
            f1 = torch.mm(f1, f1.t())
            f3 = torch.mm(f3, f3.t())
            style_loss += torch.mean((f1 - f3) ** 2) / (c * h * w)
        loss = content_loss + config.style_weight * style_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % config.log_step == 0:
            print(
                f"Step [{step + 1}/{config.total_step}], {content_loss.item():.4f}, {style_loss.item():.4f}"
            )
        if (step + 1) % config.sample_step == 0:
            img = target.clone().squeeze()
            torch.save(img.detach().clamp_(0, 1), f"output-{step + 1}.pt")
    torch.save(target.detach(), config.save_to)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("save_to")
    parser.add_argument("--total_step", type=int, default=40)
    parser.add_argument("--log_step", type=int, default=10)
    parser.add_argument("--sample_step", type=int, default=15)
    parser.add_argument("--style_weight", type=float, default=100)
    parser.add_argument("--lr", type=float, default=0.003)
    config = parser.parse_args()
    print(config)
    main(config)
