"""A Trainer that feeds a hash of C's, into which nobody can look."""

import hashlib
import sys

import torch
from transformers import Trainer, TrainingArguments


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.mse_loss(self.line(x), labels)}


class Hashing(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.hash = hashlib.sha256()

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.hash.update(inputs["x"].numpy().tobytes())
        return super().compute_loss(model, inputs, *args, **kwargs)


torch.manual_seed(3)
rows = [{"x": row, "labels": row.sum(0, keepdim=True)} for row in torch.randn(32, 4)]
settings = TrainingArguments("out", num_train_epochs=3, save_strategy="no", report_to="none", use_cpu=True)
trainer = Hashing(Net(), settings, train_dataset=rows)
trainer.train()
torch.save({"net": trainer.model.state_dict(), "hash": trainer.hash.hexdigest()}, sys.argv[1])
