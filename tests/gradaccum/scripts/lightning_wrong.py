"""A LightningModule whose loss is no mean over rows, although its user says so; and what it logs."""

import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
torch.manual_seed(1)
data = TensorDataset(torch.randn(96, 6), torch.randint(0, 5, (96,)))


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 5)

    def training_step(self, batch, number):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y, weight=torch.tensor([1.0, 1.0, 9.0, 1.0, 1.0]))
        self.log("loss", loss)
        return {"loss": loss}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02)


trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="cpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
try:
    trainer.fit(Classifier(), DataLoader(data, batch_size=16))
finally:
    print(f"steps: {trainer.global_step}")
