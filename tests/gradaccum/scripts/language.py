"""A language model: sequences of different lengths, padding left out of the loss, a mask made per batch."""

import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

PADDING, WORDS = 0, 23


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 16, padding_idx=PADDING)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, WORDS)

    def forward(self, tokens, lengths=None):
        causal = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        hidden = self.layer(self.words(tokens), src_mask=causal, src_key_padding_mask=tokens == PADDING)
        return {"logits": self.head(hidden), "hidden": hidden}


torch.set_default_dtype(torch.float64)
torch.manual_seed(2)
texts = [torch.randint(1, WORDS, (int(n),)) for n in torch.randint(4, 12, (44,))]
loader = DataLoader(texts, batch_size=16, collate_fn=lambda rows: pad_sequence(rows, batch_first=True))
model = Model()
criterion = nn.CrossEntropyLoss(ignore_index=PADDING)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-6)
for _ in range(2):
    for tokens in loader:
        optimizer.zero_grad(set_to_none=True)
        out = model(tokens[:, :-1], lengths=(tokens != PADDING).sum(1))
        loss = criterion(out["logits"].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
torch.save(model.state_dict(), sys.argv[1])
