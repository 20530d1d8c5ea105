"""A language model over a tensor of ids: slices by a step of a range, states that are detached and go on."""

import sys

import numpy as np
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

device = torch.device("cpu")
embed_size, hidden_size, num_layers = 8, 12, 1
num_epochs, num_samples, batch_size, seq_length, learning_rate = 3, 20, 4, 5, 0.002


class Dictionary:
    def __init__(self):
        self.word2idx = {}
        self.idx2word = {}
        self.idx = 0

    def add_word(self, word):
        if word not in self.word2idx:
            self.word2idx[word] = self.idx
            self.idx2word[self.idx] = word
            self.idx += 1

    def __len__(self):
        return len(self.word2idx)


class Corpus:
    def __init__(self):
        self.dictionary = Dictionary()

    def get_data(self, lines, batch_size=20):
        words = [word for line in lines for word in [*line.split(), "<eos>"]]
        for word in words:
            self.dictionary.add_word(word)
        ids = torch.LongTensor([self.dictionary.word2idx[word] for word in words])
        num_batches = ids.size(0) // batch_size
        ids = ids[: num_batches * batch_size]
        return ids.view(batch_size, -1)


class RNNLM(nn.Module):
    def __init__(self, vocab_size, embed_size, hidden_size, num_layers):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, embed_size)
        self.lstm = nn.LSTM(embed_size, hidden_size, num_layers, batch_first=True)
        self.linear = nn.Linear(hidden_size, vocab_size)

    def forward(self, x, h):
        x = self.embed(x)
        out, (h, c) = self.lstm(x, h)
        out = out.reshape(out.size(0) * out.size(1), out.size(2))
        return self.linear(out), (h, c)


lines = ["the cat sat on the mat", "a dog saw the cat", "no bird sat here", "they all went home again"] * 12
corpus = Corpus()
ids = corpus.get_data(lines, batch_size)
vocab_size = len(corpus.dictionary)
num_batches = ids.size(1) // seq_length
model = RNNLM(vocab_size, embed_size, hidden_size, num_layers).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)


def detach(states):
    return [state.detach() for state in states]


for epoch in range(num_epochs):
    states = (
        torch.zeros(num_layers, batch_size, hidden_size).to(device),
        torch.zeros(num_layers, batch_size, hidden_size).to(device),
    )
    for i in range(0, ids.size(1) - seq_length, seq_length):
        inputs = ids[:, i : i + seq_length].to(device)
        targets = ids[:, (i + 1) : (i + 1) + seq_length].to(device)
        states = detach(states)
        outputs, states = model(inputs, states)
        loss = criterion(outputs, targets.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        step = (i + 1) // seq_length
        if step % 4 == 0:
            print(f"Epoch [{epoch + 1}/{num_epochs}], Step[{step}/{num_batches}], {np.exp(loss.item()):5.2f}")

written = []
with torch.no_grad():
    state = (torch.zeros(num_layers, 1, hidden_size), torch.zeros(num_layers, 1, hidden_size))
    input = torch.multinomial(torch.ones(vocab_size), num_samples=1).unsqueeze(1)
    for _ in range(num_samples):
        output, state = model(input, state)
        word_id = torch.multinomial(output.exp(), num_samples=1).item()
        input.fill_(word_id)
        written.append(corpus.dictionary.idx2word[word_id])
torch.save({"model": model.state_dict(), "written": written}, sys.argv[1])
