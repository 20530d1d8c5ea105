"""Demo models that Lightning ships, in its Trainer: automatic and manual optimization, checkpoints."""

import sys

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.demos.boring_classes import BoringModel, ManualOptimBoringModel

seed_everything(7, verbose=False)
for model in (BoringModel(), ManualOptimBoringModel()):
    trainer = Trainer(
        default_root_dir="runs",
        accelerator="cpu",
        max_epochs=2,
        limit_train_batches=8,
        limit_val_batches=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model)
    print(
        trainer.global_step,
        trainer.current_epoch,
        {k: repr(v.item()) for k, v in trainer.callback_metrics.items()},
    )
    print(repr(model.layer.weight.double().sum().item()))
torch.save(model.state_dict(), sys.argv[1])
