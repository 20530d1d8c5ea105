"""A Trainer that counts its rows, a callback that keeps a list, a model that counts, data that draws random
numbers; a log is written every third step, and an epoch has six steps of which the last is short."""

import random
import sys

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.drop = torch.nn.Linear(4, 1), torch.nn.Dropout(0.1)
        self.calls = 0

    def forward(self, x, labels):
        self.calls += 1
        return {"loss": torch.nn.functional.mse_loss(self.line(self.drop(x)), labels)}


class Noisy(torch.utils.data.Dataset):
    def __init__(self, count):
        self.rows, self.asked = torch.randn(count, 4), 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, at):
        self.asked += 1
        row = self.rows[at]
        return {"x": row + torch.randn(4) * random.random(), "labels": row.sum(0, keepdim=True)}


class Listing(TrainerCallback):
    def __init__(self):
        self.steps = []

    def on_step_end(self, args, state, control, **given):
        self.steps.append((state.global_step, random.random()))


class Counting(Trainer):
    seen = 0

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.seen += len(inputs["x"])
        return super().compute_loss(model, inputs, *args, **kwargs)


torch.manual_seed(3)
rows, listing, net = Noisy(44), Listing(), Net()
settings = TrainingArguments(
    "out",
    num_train_epochs=4,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    logging_steps=3,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Counting(net, settings, train_dataset=rows, callbacks=[listing])
loss = trainer.train().training_loss
timed = ("runtime", "second")
history = [{key: each[key] for key in each if not key.endswith(timed)} for each in trainer.state.log_history]
counted = {"seen": trainer.seen, "calls": net.calls, "steps": listing.steps, "asked": rows.asked}
kept = {"net": net.state_dict(), "optimizer": trainer.optimizer.state_dict(), "drawn": torch.rand(())}
torch.save({"history": history, "loss": loss, **counted, **kept}, sys.argv[1])
