"""trange over epochs and a nested bar over batches."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm, trange

torch.manual_seed(43)
train_dataloader = DataLoader(TensorDataset(torch.randint(0, 20, (48, 5))), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
tr_loss, global_step = 0.0, 0

for _ in trange(5, desc="Epoch"):
    for batch in tqdm(train_dataloader, desc="Iteration"):
        (ids,) = batch
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, 20), ids[:, 1:].reshape(-1))
        loss.backward()
        tr_loss += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        global_step += 1

print("average loss", tr_loss / global_step)
torch.save({"model": model.state_dict(), "tr_loss": tr_loss, "global_step": global_step}, sys.argv[1])
