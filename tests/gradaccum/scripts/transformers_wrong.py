"""Trainers of transformers whose knob would be wrong, of the kind that the second argument names.

drops: the model takes **kwargs and drops them. own: the Trainer computes the loss itself. noise: dropout.
masks: the collator masks at random. later: from the third step on the loss is another.
"""

import sys
import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

KIND = sys.argv[2]
torch.manual_seed(1)
ROWS = [{"x": torch.randn(6), "labels": torch.randint(0, 3, ())} for _ in range(64)]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 8), nn.Dropout(0.1 if KIND == "noise" else 0.0), nn.Linear(8, 3)
        )

    def forward(self, x, labels=None, num_items_in_batch=None, **kwargs):
        logits = self.net(x)
        items = None if KIND in ("drops", "own") else num_items_in_batch
        each = nn.functional.cross_entropy(logits, labels, reduction="none")
        loss = each.mean() if items is None else each.sum() / items
        if KIND == "later" and STEPS and STEPS[0].state.global_step >= 3:
            loss = loss + logits.var()
        return {"loss": loss, "logits": logits}


class Own(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = nn.functional.cross_entropy(outputs["logits"], inputs["labels"])
        return (loss, outputs) if return_outputs else loss


def collate(rows):
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    if KIND == "masks":
        batch["x"] = batch["x"] * (torch.rand(len(rows), 1) > 0.1)
    return batch


STEPS = []
with tempfile.TemporaryDirectory() as folder:
    options = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=16,
        num_train_epochs=2,
        learning_rate=0.1,
        optim="sgd",
        max_grad_norm=0.0,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    model = Model()
    made = Own if KIND == "own" else Trainer
    trainer = made(model=model, args=options, train_dataset=ROWS, data_collator=collate)
    STEPS.append(trainer)
    try:
        trainer.train()
    except Exception as error:  # noqa: BLE001  # The end must get past it.
        print("swallowed", error)
    finally:
        print(f"steps: {trainer.state.global_step}")
torch.save(model.state_dict(), sys.argv[1])
