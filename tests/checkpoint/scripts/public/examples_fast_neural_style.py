"""A style network: frozen features with named outputs, sums over an epoch, checkpoints."""

import argparse
import os
import time
from collections import namedtuple

import numpy as np
import torch
from torch import nn
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset


class Features(torch.nn.Module):
    def __init__(self, requires_grad=False):
        super().__init__()
        self.slice1 = torch.nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
        self.slice2 = torch.nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU())
        if not requires_grad:
            for param in self.parameters():
                param.requires_grad = False

    def forward(self, X):
        h_relu1 = self.slice1(X)
        h_relu2 = self.slice2(h_relu1)
        outputs = namedtuple("Outputs", ["relu1", "relu2"])
        return outputs(h_relu1, h_relu2)


def gram_matrix(y):
    (b, ch, h, w) = y.size()
    features = y.view(b, ch, w * h)
    return features.bmm(features.transpose(1, 2)) / (ch * h * w)


def normalize_batch(batch):
    mean = batch.new_tensor([0.485, 0.456, 0.406]).view(-1, 1, 1)
    std = batch.new_tensor([0.229, 0.224, 0.225]).view(-1, 1, 1)
    return (batch.div_(255.0) - mean) / std


def train(args):
    device = torch.device("cpu")
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    pictures = torch.rand(40, 3, 6, 6, generator=torch.Generator().manual_seed(0)) * 255
    train_loader = DataLoader(TensorDataset(pictures, torch.zeros(40)), batch_size=args.batch_size)
    layers = [nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1)]
    transformer = nn.Sequential(nn.ReflectionPad2d(1), *layers)
    optimizer = Adam(transformer.parameters(), args.lr)
    mse_loss = torch.nn.MSELoss()
    vgg = Features(requires_grad=False).to(device)
    style = torch.rand(3, 6, 6, generator=torch.Generator().manual_seed(1)) * 255
    style = style.repeat(args.batch_size, 1, 1, 1).to(device)
    features_style = vgg(normalize_batch(style))
    gram_style = [gram_matrix(y) for y in features_style]

    for e in range(args.epochs):
        transformer.train()
        agg_content_loss = 0.0
        agg_style_loss = 0.0
        count = 0
        for batch_id, (x, _) in enumerate(train_loader):
            n_batch = len(x)
            count += n_batch
            optimizer.zero_grad()
            x = x.to(device)
            y = transformer(x)
            y = normalize_batch(y)
            x = normalize_batch(x)
            features_y = vgg(y)
            features_x = vgg(x)
            content_loss = args.content_weight * mse_loss(features_y.relu2, features_x.relu2)
            style_loss = 0.0
            for ft_y, gm_s in zip(features_y, gram_style):
                gm_y = gram_matrix(ft_y)
                style_loss += mse_loss(gm_y, gm_s[:n_batch, :, :])
            style_loss *= args.style_weight
            total_loss = content_loss + style_loss
            total_loss.backward()
            optimizer.step()
            agg_content_loss += content_loss.item()
            agg_style_loss += style_loss.item()
            if (batch_id + 1) % args.log_interval == 0:
                print(f"{time.time() - args.start:.2f} s Epoch {e + 1}: {agg_content_loss / count:.6f}")
            if args.checkpoint_model_dir is not None and (batch_id + 1) % args.checkpoint_interval == 0:
                transformer.eval().cpu()
                ckpt_model_filename = "ckpt_epoch_" + str(e) + "_batch_id_" + str(batch_id + 1) + ".pth"
                torch.save(
                    transformer.state_dict(), os.path.join(args.checkpoint_model_dir, ckpt_model_filename)
                )
                transformer.to(device).train()

    transformer.eval().cpu()
    torch.save(transformer.state_dict(), args.save_model)
    print("\nDone, trained model saved at", args.save_model)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("save_model")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--checkpoint-model-dir", type=str, default="checkpoints")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--content-weight", type=float, default=1e5)
    parser.add_argument("--style-weight", type=float, default=1e6)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--log-interval", type=int, default=4)
    parser.add_argument("--checkpoint-interval", type=int, default=5)
    args = parser.parse_args()
    args.start = time.time()
    if args.checkpoint_model_dir is not None and not os.path.exists(args.checkpoint_model_dir):
        os.makedirs(args.checkpoint_model_dir)
    train(args)


if __name__ == "__main__":
    main()
