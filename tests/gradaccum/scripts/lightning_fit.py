"""A LightningModule with a mean loss under Lightning's Trainer."""

import sys
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
data = TensorDataset(torch.randn(96, 6), torch.randint(0, 5, (96,)))
loader = DataLoader(data, batch_size=16, shuffle=True)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))

    def training_step(self, batch, number):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


model = Classifier()
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    precision="64-true",
    enable_progress_bar=False,
    enable_model_summary=False,
    gradient_clip_val=0.5,
    accumulate_grad_batches=1,
)
trainer.fit(model, loader)
rows = trainer.train_dataloader.batch_sampler.batch_size
print(f"knob: {trainer.accumulate_grad_batches} steps of {rows} rows")
torch.save(model.net.state_dict(), sys.argv[1])
