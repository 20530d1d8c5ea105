"""Lightning's Trainer with a module and a loader: `lightning_trainer.py EPOCHS`."""

import sys

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 1)

    def training_step(self, batch, number):
        x, y = batch
        return torch.nn.functional.mse_loss(self.line(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.randn(40, 1)), batch_size=8)
trainer = lightning.Trainer(
    max_epochs=int(sys.argv[1]),
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Line(), loader)
