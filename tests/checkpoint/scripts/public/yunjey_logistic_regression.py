"""Logistic regression over images that are made flat in the loop."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

input_size = 4 * 4
num_classes = 5
num_epochs = 4
batch_size = 8
learning_rate = 0.001
given = torch.Generator().manual_seed(0)
images, labels = torch.rand(92, 1, 4, 4, generator=given), torch.randint(0, 5, (92,), generator=given)
train_loader = DataLoader(dataset=TensorDataset(images, labels), batch_size=batch_size, shuffle=True)
test_loader = DataLoader(dataset=TensorDataset(images, labels), batch_size=batch_size, shuffle=False)
model = nn.Linear(input_size, num_classes)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)

total_step = len(train_loader)
for epoch in range(num_epochs):
    for i, (images, labels) in enumerate(train_loader):
        images = images.reshape(-1, input_size)
        outputs = model(images)
        loss = criterion(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (i + 1) % 5 == 0:
            print(f"Epoch [{epoch + 1}/{num_epochs}], Step [{i + 1}/{total_step}], Loss: {loss.item():.4f}")

with torch.no_grad():
    correct = 0
    total = 0
    for images, labels in test_loader:
        outputs = model(images.reshape(-1, input_size))
        _, predicted = torch.max(outputs.data, 1)
        total += labels.size(0)
        correct += (predicted == labels).sum()
    print(f"Accuracy of the model: {100 * correct / total} %")
torch.save({"model": model.state_dict(), "correct": correct}, sys.argv[1])
