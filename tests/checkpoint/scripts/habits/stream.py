"""An iterable data set with a known length per epoch that reads on where it was in an endless stream."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class TextStream(IterableDataset):
    def __init__(self, tokens, block, per_epoch):
        self.tokens, self.block, self.per_epoch = tokens, block, per_epoch
        self.position = 0

    def __len__(self):
        return self.per_epoch

    def __iter__(self):
        for _ in range(self.per_epoch):
            if self.position + self.block + 1 > len(self.tokens):
                self.position = 0
            piece = self.tokens[self.position : self.position + self.block + 1]
            self.position += self.block
            yield piece[:-1], piece[1:]


torch.manual_seed(86)
tokens = (torch.cumsum(torch.randint(0, 3, (700,)), 0)) % 17
stream = TextStream(tokens, block=6, per_epoch=40)
loader = DataLoader(stream, batch_size=4)
model = nn.Sequential(nn.Embedding(17, 12), nn.Linear(12, 17))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
losses = []
for epoch in range(4):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {losses[-1]:.4f} at token {stream.position}")
torch.save({"model": model.state_dict(), "losses": losses, "position": stream.position}, sys.argv[1])
