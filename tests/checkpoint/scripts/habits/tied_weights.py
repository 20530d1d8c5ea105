"""A language model whose output layer shares its weights with the embedding, and its perplexity."""

import math
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TinyLM(nn.Module):
    def __init__(self, ntoken, width):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, width)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.decoder = nn.Linear(width, ntoken, bias=False)
        self.decoder.weight = self.encoder.weight

    def forward(self, tokens):
        return self.decoder(self.drop(self.rnn(self.drop(self.encoder(tokens)))[0]))


def main():
    torch.manual_seed(79)
    ntoken = 20
    text = (torch.arange(600) * 7 + torch.randint(0, 2, (600,))) % ntoken
    sequences = text.unfold(0, 9, 9)
    loader = DataLoader(TensorDataset(sequences[:, :-1], sequences[:, 1:]), batch_size=6, shuffle=True)
    model = TinyLM(ntoken, 12)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    best_ppl = None
    perplexities = []
    for epoch in range(1, 5):
        model.train()
        total_loss = 0.0
        for batch, (data, targets) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data).flatten(0, 1), targets.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            total_loss += loss.item()
            if batch % 5 == 0:
                print(f"| epoch {epoch:3d} | {batch:3d} batches | loss {loss.item():5.2f}")
        ppl = math.exp(total_loss / len(loader))
        perplexities.append(ppl)
        if not best_ppl or ppl < best_ppl:
            best_ppl = ppl
        else:
            optimizer.param_groups[0]["lr"] /= 4.0
    tied = model.decoder.weight is model.encoder.weight
    torch.save(
        {"model": model.state_dict(), "ppl": perplexities, "best": best_ppl, "tied": tied}, sys.argv[1]
    )


if __name__ == "__main__":
    main()
