"""Cross validation with all loops at the top level."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(60)
K, EPOCHS = 3, 2
dataset = TensorDataset(torch.randn(72, 6), torch.randint(0, 2, (72,)))
chunks = torch.randperm(len(dataset)).chunk(K)
results = {}

for fold in range(K):
    train_ids = torch.cat([chunk for i, chunk in enumerate(chunks) if i != fold]).tolist()
    test_ids = chunks[fold].tolist()
    trainloader = DataLoader(Subset(dataset, train_ids), batch_size=8, shuffle=True)
    testloader = DataLoader(Subset(dataset, test_ids), batch_size=12)
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for epoch in range(EPOCHS):
        current_loss = 0.0
        for i, (inputs, targets) in enumerate(trainloader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(inputs), targets)
            loss.backward()
            optimizer.step()
            current_loss += loss.item()
        print(f"fold {fold} epoch {epoch}: {current_loss / (i + 1):.4f}")
    with torch.no_grad():
        correct = sum((network(inputs).argmax(1) == targets).sum().item() for inputs, targets in testloader)
    results[fold] = 100.0 * correct / len(test_ids)

average = sum(results.values()) / len(results)
torch.save({"results": results, "average": average, "last": network.state_dict()}, sys.argv[1])
