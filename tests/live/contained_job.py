"""A DDP job that knows nothing of cotenant: `contained_job.py STEPS PACE_S RESULT`."""

import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

steps, pace_s, result = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters())
noise = torch.Generator().manual_seed(dist.get_rank())
for _ in range(steps):
    loss = model(torch.randn(4, 16, generator=noise)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(pace_s)
words = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
print("contained in", {**os.environ}.get("container", "nothing"), "as", os.getuid())
if dist.get_rank() == 0:
    with open(result, "w") as file:
        file.write(hashlib.sha256(words).hexdigest())
dist.destroy_process_group()
