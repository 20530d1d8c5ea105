"""Contrastive learning with a queue of keys in a tensor that is overwritten in place."""

import copy
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(96)
DIM, K, M, T = 6, 32, 0.9, 0.2
encoder_q = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, DIM))
encoder_k = copy.deepcopy(encoder_q)
for p in encoder_k.parameters():
    p.requires_grad = False
loader = DataLoader(TensorDataset(torch.randn(64, 10)), batch_size=8, shuffle=True, drop_last=True)
optimizer = torch.optim.SGD(encoder_q.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
queue = F.normalize(torch.randn(K, DIM), dim=1)
queue_ptr = 0
losses = []

for epoch in range(5):
    for (x,) in loader:
        q = F.normalize(encoder_q(x + 0.1 * torch.randn_like(x)), dim=1)
        with torch.no_grad():
            for param_q, param_k in zip(encoder_q.parameters(), encoder_k.parameters()):
                param_k.data = param_k.data * M + param_q.data * (1.0 - M)
            k = F.normalize(encoder_k(x + 0.1 * torch.randn_like(x)), dim=1)
        positive = (q * k).sum(1, keepdim=True)
        negative = q @ queue.clone().t()
        logits = torch.cat([positive, negative], dim=1) / T
        loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue[queue_ptr : queue_ptr + len(x)] = k
        queue_ptr = (queue_ptr + len(x)) % K
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {losses[-1]:.4f}")

torch.save({"encoder": encoder_q.state_dict(), "queue": queue, "losses": losses}, sys.argv[1])
