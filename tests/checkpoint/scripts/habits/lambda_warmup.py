"""A schedule as a function within a function, with linear warm-up and decay, a step of it per batch."""

import sys

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset


def get_linear_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps):
    def lr_lambda(current_step):
        if current_step < num_warmup_steps:
            return float(current_step) / float(max(1, num_warmup_steps))
        left = float(num_training_steps - current_step)
        return max(0.0, left / float(max(1, num_training_steps - num_warmup_steps)))

    return LambdaLR(optimizer, lr_lambda)


torch.manual_seed(32)
tokens = torch.randint(0, 30, (60, 6))
tags = (tokens.sum(1) % 3).long()
train_dataloader = DataLoader(TensorDataset(tokens, tags), batch_size=8, shuffle=True)
model = nn.Sequential(nn.EmbeddingBag(30, 12), nn.Dropout(0.1), nn.Linear(12, 3))
no_decay = ["bias"]
grouped = [
    {
        "params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)],
        "weight_decay": 0.01,
    },
    {
        "params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)],
        "weight_decay": 0.0,
    },
]
optimizer = torch.optim.AdamW(grouped, lr=5e-3, eps=1e-8)
num_epochs = 4
total_steps = len(train_dataloader) * num_epochs
scheduler = get_linear_schedule_with_warmup(optimizer, 6, total_steps)

training_stats = []
for epoch_i in range(num_epochs):
    print(f"======== Epoch {epoch_i + 1} / {num_epochs} ========")
    total_train_loss = 0
    model.train()
    for step, batch in enumerate(train_dataloader):
        if step % 4 == 0 and step != 0:
            print(f"  Batch {step:>5,}  of  {len(train_dataloader):>5,}.")
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        total_train_loss += loss.item()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    avg_train_loss = total_train_loss / len(train_dataloader)
    print(f"  Average training loss: {avg_train_loss:.2f}")
    training_stats.append(
        {"epoch": epoch_i + 1, "Training Loss": avg_train_loss, "lr": scheduler.get_last_lr()}
    )

torch.save({"model": model.state_dict(), "training_stats": training_stats}, sys.argv[1])
