"""The shortest loop by steps: a bigram table and get_batch, a line of text now and then."""

import sys

import torch
import torch.nn.functional as F

torch.manual_seed(1)
words = ["emma", "olivia", "ava", "isabella", "sophia", "mia", "amelia", "harper", "evelyn", "luna"] * 4
letters = sorted(set("".join(words)))
itos = ["."] + letters
stoi = {s: i for i, s in enumerate(itos)}
pairs = [(stoi[a], stoi[b]) for w in words for a, b in zip("." + w, w + ".")]
xs, ys = (torch.tensor(column) for column in zip(*pairs))


def get_batch(size):
    ix = torch.randint(0, xs.shape[0], (size,))
    return xs[ix], ys[ix]


table = torch.nn.Embedding(len(itos), len(itos))
optimizer = torch.optim.AdamW(table.parameters(), lr=1e-2)
lossi = []
for step in range(50):
    xb, yb = get_batch(32)
    loss = F.cross_entropy(table(xb), yb)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    lossi.append(loss.log10().item())
    if step % 10 == 0:
        print(f"{step:7d}/50: {loss.item():.4f}")

samples = []
for _ in range(3):
    out, ix = [], 0
    while len(out) < 8:
        ix = torch.multinomial(F.softmax(table.weight[ix], 0), 1).item()
        if ix == 0:
            break
        out.append(itos[ix])
    samples.append("".join(out))
torch.save({"table": table.state_dict(), "lossi": lossi, "samples": samples}, sys.argv[1])
