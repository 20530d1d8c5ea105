"""A data set of ready batches that is shuffled by a method of its own at the start of each epoch."""

import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class BucketDataset(Dataset):
    """Sentences of about the same length make a batch."""

    def __init__(self, sentences, batch_size):
        ordered = sorted(sentences, key=len)
        self.batches = [ordered[i : i + batch_size] for i in range(0, len(ordered), batch_size)]

    def shuffle(self):
        random.shuffle(self.batches)

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        batch = self.batches[index]
        longest = max(len(sentence) for sentence in batch)
        return torch.tensor([sentence + [0] * (longest - len(sentence)) for sentence in batch])


random.seed(84)
torch.manual_seed(84)
corpus = [[random.randint(1, 15) for _ in range(random.randint(3, 9))] for _ in range(60)]
train_set = BucketDataset(corpus, batch_size=5)
loader = DataLoader(train_set, batch_size=None)
model = nn.Sequential(nn.Embedding(16, 8, padding_idx=0), nn.Linear(8, 16))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
lengths = []

for epoch in range(4):
    train_set.shuffle()
    for ids in loader:
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lengths.append(ids.shape[1])
    print(f"epoch {epoch}: loss {loss.item():.4f}")

torch.save({"model": model.state_dict(), "lengths": lengths}, sys.argv[1])
