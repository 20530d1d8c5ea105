"""A language model with padding under the Trainer of transformers, which weighs by tokens itself."""

import sys
import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
TOKENS = torch.randint(1, 20, (64, 7))
TARGETS = TOKENS.roll(-1, 1).masked_fill(torch.rand(64, 7) < 0.4, -100)


class Sentences(Dataset):
    def __len__(self):
        return len(TOKENS)

    def __getitem__(self, row):
        return {"tokens": TOKENS[row], "labels": TARGETS[row]}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.out = nn.Linear(8, 20)

    def forward(self, tokens, labels=None, num_items_in_batch=None, **kwargs):
        logits = self.out(torch.tanh(self.embed(tokens)))
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
        )
        return {"loss": loss / (num_items_in_batch or (labels != -100).sum()), "logits": logits}


with tempfile.TemporaryDirectory() as folder:
    options = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=16,
        num_train_epochs=2,
        learning_rate=0.01,
        max_grad_norm=0.5,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        seed=3,
    )
    model = Model()
    Trainer(model=model, args=options, train_dataset=Sentences()).train()
print(f"knob: {options.gradient_accumulation_steps} steps of {options.per_device_train_batch_size} rows")
torch.save(model.state_dict(), sys.argv[1])
