"""Models and losses that cannot be taken apart by rows; the second argument says which."""

import random
import sys

import torch
from torch import nn
from torch.nn import functional

KIND = sys.argv[2]
KEPT = []


class Centred(nn.Module):
    """Mixes rows only in training, which an evaluation would not show."""

    def forward(self, x):
        return x - x.mean(0) if self.training else x


class Counting(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return x / (1 + 0.1 * self.calls)


class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.seen += 1
        return x


class DropPath(nn.Module):
    def forward(self, x):
        return x * x.new_empty((len(x), 1)).bernoulli_(0.8) / 0.8


class States(nn.Module):
    """Returns a recurrent state as well, whose rows are layers."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(6, 6, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.rnn(x.unsqueeze(1))


class Loss(nn.Module):
    """Returns its loss, which compares rows."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y):
        out = functional.normalize(self.net(x))
        return functional.cross_entropy(out @ out.t(), torch.arange(len(x)))


class Aside(nn.Module):
    """Leaves a second loss in an attribute, or in a list of the script."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        out = self.layer(x)
        if KIND == "attribute":
            self.extra = out.square().mean()
        else:
            KEPT.append(out.square().mean())
        return out


class Shuffled(nn.Module):
    def forward(self, x):
        return x + 0.5 * x[torch.randperm(len(x))]


class InPlace(nn.Module):
    def forward(self, x):
        return x.mul_(2.0)


class Shared(nn.Module):
    """The batch comes second."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0)

    def forward(self, x):
        return self.layer(x.unsqueeze(1)).squeeze(1)


SINGLE = {"buffer", "dropout", "droppath", "states"}
torch.set_default_dtype(torch.float32 if KIND in SINGLE else torch.float64)
torch.manual_seed(12)
random.seed(12)
first = {
    "batchnorm": lambda: nn.BatchNorm1d(6),
    "centred": Centred,
    "counting": Counting,
    "attribute": Aside,
    "aside": Aside,
    "shuffled": Shuffled,
    "inplace": InPlace,
    "shared": Shared,
    "buffer": Buffered,
    "dropout": lambda: nn.Dropout(0.3),
    "droppath": DropPath,
}.get(KIND, nn.Identity)()
model = nn.Sequential(first, nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
if KIND == "scalar":
    model = Loss(model)
if KIND == "states":
    model = States()
if KIND == "hook":
    model[1].register_forward_hook(lambda module, args, out: KEPT.append(out.square().mean()))
if KIND == "compiled":
    model = torch.compile(model, backend="eager")
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(6):
    x, y = torch.randn(12, 6), torch.randint(0, 3, (12,))
    KEPT.clear()
    optimizer.zero_grad()
    if KIND == "scalar":
        loss = model(x, y)
    elif KIND == "states":
        loss = model(x)[0].square().mean()
    else:
        loss = functional.cross_entropy(model(x), y)
    loss = loss + sum(KEPT) + getattr(first, "extra", 0.0)
    loss.backward()
    optimizer.step()
drawn = torch.tensor([random.random(), float(torch.rand(()))])
torch.save({**model.state_dict(), "drawn": drawn}, sys.argv[1])
