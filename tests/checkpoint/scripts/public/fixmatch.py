"""Labelled and unlabelled batches from two iterators that are made anew in `except`, as in FixMatch."""

import argparse
import copy
import math
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset
from tqdm import tqdm


def set_seed(args):
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)


def get_cosine_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps, last_epoch=-1):
    def _lr_lambda(current_step):
        if current_step < num_warmup_steps:
            return float(current_step) / float(max(1, num_warmup_steps))
        rest = float(max(1, num_training_steps - num_warmup_steps))
        return max(0.0, math.cos(math.pi * 7.0 / 16.0 * float(current_step - num_warmup_steps) / rest))

    return LambdaLR(optimizer, _lr_lambda, last_epoch)


class ModelEMA:
    def __init__(self, model, decay):
        self.ema = copy.deepcopy(model)
        self.ema.eval()
        self.decay = decay
        self.param_keys = [k for k, _ in self.ema.named_parameters()]
        for p in self.ema.parameters():
            p.requires_grad_(False)

    def update(self, model):
        with torch.no_grad():
            msd = model.state_dict()
            esd = self.ema.state_dict()
            for k in self.param_keys:
                esd[k].copy_(esd[k] * self.decay + (1.0 - self.decay) * msd[k].detach())


class TwoViews(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, index):
        row = self.rows[index]
        strong = row + 0.5 * torch.from_numpy(np.random.randn(6).astype("float32"))
        return (row * random.uniform(0.9, 1.1), strong), 0

    def __len__(self):
        return len(self.rows)


def train(args, labeled_trainloader, unlabeled_trainloader, model, optimizer, ema_model, scheduler):
    labeled_epoch = 0
    unlabeled_epoch = 0
    labeled_iter = iter(labeled_trainloader)
    unlabeled_iter = iter(unlabeled_trainloader)
    history = []
    model.train()
    for epoch in range(args.start_epoch, args.epochs):
        total, masks = 0.0, 0.0
        p_bar = tqdm(range(args.eval_step))
        for batch_idx in range(args.eval_step):
            try:
                inputs_x, targets_x = next(labeled_iter)
            except StopIteration:
                labeled_epoch += 1
                labeled_iter = iter(labeled_trainloader)
                inputs_x, targets_x = next(labeled_iter)
            try:
                (inputs_u_w, inputs_u_s), _ = next(unlabeled_iter)
            except StopIteration:
                unlabeled_epoch += 1
                unlabeled_iter = iter(unlabeled_trainloader)
                (inputs_u_w, inputs_u_s), _ = next(unlabeled_iter)
            batch_size = inputs_x.shape[0]
            logits = model(torch.cat((inputs_x, inputs_u_w, inputs_u_s)))
            logits_x = logits[:batch_size]
            logits_u_w, logits_u_s = logits[batch_size:].chunk(2)
            Lx = F.cross_entropy(logits_x, targets_x, reduction="mean")
            pseudo_label = torch.softmax(logits_u_w.detach() / args.T, dim=-1)
            max_probs, targets_u = torch.max(pseudo_label, dim=-1)
            mask = max_probs.ge(args.threshold).float()
            Lu = (F.cross_entropy(logits_u_s, targets_u, reduction="none") * mask).mean()
            loss = Lx + args.lambda_u * Lu
            loss.backward()
            total += loss.item()
            masks += mask.mean().item()
            optimizer.step()
            scheduler.step()
            ema_model.update(model)
            model.zero_grad()
            p_bar.set_description(
                f"Train Epoch: {epoch + 1}/{args.epochs} Loss: {total / (batch_idx + 1):.4f}"
            )
            p_bar.update()
        p_bar.close()
        history.append((total, masks))
    return history, labeled_epoch, unlabeled_epoch


def main():
    parser = argparse.ArgumentParser(description="FixMatch")
    parser.add_argument("save_to")
    parser.add_argument("--epochs", default=3, type=int)
    parser.add_argument("--start-epoch", default=0, type=int)
    parser.add_argument("--eval-step", default=12, type=int)
    parser.add_argument("--batch-size", default=4, type=int)
    parser.add_argument("--mu", default=2, type=int)
    parser.add_argument("--lambda-u", default=1, type=float)
    parser.add_argument("--T", default=1, type=float)
    parser.add_argument("--threshold", default=0.6, type=float)
    parser.add_argument("--seed", default=5, type=int)
    args = parser.parse_args()
    set_seed(args)
    given = torch.Generator().manual_seed(0)
    rows = torch.randn(80, 6, generator=given)
    labeled = TensorDataset(rows[:30], (rows[:30, 0] > 0).long())
    labeled_trainloader = DataLoader(labeled, sampler=RandomSampler(labeled), batch_size=4, drop_last=True)
    unlabeled = TwoViews(rows[30:])
    unlabeled_trainloader = DataLoader(
        unlabeled, sampler=RandomSampler(unlabeled), batch_size=args.batch_size * args.mu, drop_last=True
    )
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.LeakyReLU(), nn.Linear(12, 2))
    optimizer = optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 0, args.epochs * args.eval_step)
    ema_model = ModelEMA(model, 0.99)
    model.zero_grad()
    history = train(args, labeled_trainloader, unlabeled_trainloader, model, optimizer, ema_model, scheduler)
    torch.save(
        {"model": model.state_dict(), "ema": ema_model.ema.state_dict(), "seen": history}, args.save_to
    )


if __name__ == "__main__":
    main()
