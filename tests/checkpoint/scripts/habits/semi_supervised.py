"""Labelled and unlabelled batches side by side with zip; the shorter loader ends the epoch."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(16)
centers = torch.randn(3, 6) * 2
labels = torch.randint(0, 3, (64,))
labeled = TensorDataset(centers[labels] + torch.randn(64, 6), labels)
unlabeled = TensorDataset(centers[torch.randint(0, 3, (160,))] + torch.randn(160, 6))
labeled_loader = DataLoader(labeled, batch_size=8, shuffle=True)
unlabeled_loader = DataLoader(unlabeled, batch_size=16, shuffle=True)

model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
threshold, lambda_u = 0.7, 1.0
mask_ratios = []

for epoch in range(5):
    model.train()
    for (x, y), (u,) in zip(labeled_loader, unlabeled_loader):
        weak = u + 0.05 * torch.randn_like(u)
        strong = u + 0.5 * torch.randn_like(u)
        with torch.no_grad():
            confidence, pseudo = F.softmax(model(weak), dim=1).max(dim=1)
        mask = (confidence >= threshold).float()
        supervised = F.cross_entropy(model(x), y)
        unsupervised = (F.cross_entropy(model(strong), pseudo, reduction="none") * mask).mean()
        loss = supervised + lambda_u * unsupervised
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mask_ratios.append(mask.mean().item())
    print(f"epoch {epoch}: loss {loss.item():.4f}, mask {mask_ratios[-1]:.2f}")

torch.save({"model": model.state_dict(), "mask_ratios": mask_ratios}, sys.argv[1])
