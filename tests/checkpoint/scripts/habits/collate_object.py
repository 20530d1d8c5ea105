"""A collate function that is an object: it masks tokens, more of them as it goes on."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader

MASK, VOCABULARY = 0, 24


class MaskingCollator:
    def __init__(self, start=0.1, end=0.4, over=30):
        self.start, self.end, self.over = start, end, over
        self.calls = 0

    def __call__(self, rows):
        ids = torch.stack(rows)
        ratio = self.start + (self.end - self.start) * min(1.0, self.calls / self.over)
        self.calls += 1
        masked = torch.rand(ids.shape) < ratio
        masked[:, 0] = True
        return torch.where(masked, torch.full_like(ids, MASK), ids), ids.masked_fill(~masked, -100)


torch.manual_seed(72)
sentences = [torch.randint(1, VOCABULARY, (7,)) for _ in range(50)]
collator = MaskingCollator()
loader = DataLoader(sentences, batch_size=5, shuffle=True, collate_fn=collator)
model = nn.Sequential(nn.Embedding(VOCABULARY, 12), nn.Linear(12, 12), nn.GELU(), nn.Linear(12, VOCABULARY))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = []

for epoch in range(4):
    for ids, labels in loader:
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {losses[-1]:.4f}")

torch.save({"model": model.state_dict(), "losses": losses, "calls": collator.calls}, sys.argv[1])
