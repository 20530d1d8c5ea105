"""Which modules there are before and after torch, and after a step; not those that bear our name."""

import sys

names = [sorted(sys.modules)]
import torch  # noqa: E402

names.append(sorted(sys.modules))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
names.append(sorted(sys.modules))
for each in names:
    own = [name for name in each if name.partition(".")[0] not in ("cotenant", "encodings")]
    print(len(own), own if len(own) < 200 else own[::40])
