"""A small language model by steps: random pieces of one long text, cosine learning rate, micro steps."""

import math
import sys

import torch
from torch import nn
from torch.nn import functional as F

batch_size, block_size, max_iters, eval_interval, eval_iters = 4, 8, 40, 10, 3
learning_rate, min_lr, warmup_iters, grad_clip = 3e-3, 3e-4, 5, 1.0
gradient_accumulation_steps = 2
torch.manual_seed(1337)

text = "the quick brown fox jumps over the lazy dog and runs away from the very lazy dog again " * 6
chars = sorted(set(text))
stoi = {ch: i for i, ch in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])
n = int(0.9 * len(data))
train_data, val_data = data[:n], data[n:]


def get_batch(split):
    source = train_data if split == "train" else val_data
    ix = torch.randint(len(source) - block_size, (batch_size,))
    x = torch.stack([source[i : i + block_size] for i in ix])
    y = torch.stack([source[i + 1 : i + block_size + 1] for i in ix])
    return x, y


class Bigram(nn.Module):
    def __init__(self, vocabulary, width=16):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, idx, targets):
        logits = self.head(self.mix(self.token(idx))[0])
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {
        split: sum(model(*get_batch(split)).item() for _ in range(eval_iters)) for split in ("train", "val")
    }
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


model = Bigram(len(chars))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.1)
best_val_loss = 1e9
for iter_num in range(max_iters):
    for param_group in optimizer.param_groups:
        param_group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0 or iter_num == max_iters - 1:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        best_val_loss = min(best_val_loss, losses["val"])
    for _ in range(gradient_accumulation_steps):
        X, Y = get_batch("train")
        loss = model(X, Y) / gradient_accumulation_steps
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

torch.save({"model": model.state_dict(), "best_val_loss": best_val_loss, "last": loss.item()}, sys.argv[1])
