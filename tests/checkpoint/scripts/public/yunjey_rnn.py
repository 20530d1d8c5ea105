"""A recurrent network reads the rows of an image; its first states are made in each forward pass."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cpu")
sequence_length, input_size, hidden_size, num_layers, num_classes = 6, 5, 8, 2, 10
num_epochs, learning_rate = 3, 0.01
given = torch.Generator().manual_seed(0)
train_dataset = TensorDataset(
    torch.randn(72, 1, 6, 5, generator=given), torch.randint(0, 10, (72,), generator=given)
)
train_loader = DataLoader(dataset=train_dataset, batch_size=6, shuffle=True)


class RNN(nn.Module):
    def __init__(self, input_size, hidden_size, num_layers, num_classes):
        super().__init__()
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.lstm = nn.LSTM(input_size, hidden_size, num_layers, batch_first=True)
        self.fc = nn.Linear(hidden_size, num_classes)

    def forward(self, x):
        h0 = torch.zeros(self.num_layers, x.size(0), self.hidden_size).to(device)
        c0 = torch.zeros(self.num_layers, x.size(0), self.hidden_size).to(device)
        out, _ = self.lstm(x, (h0, c0))
        return self.fc(out[:, -1, :])


model = RNN(input_size, hidden_size, num_layers, num_classes).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
total_step = len(train_loader)
for epoch in range(num_epochs):
    for i, (images, labels) in enumerate(train_loader):
        images = images.reshape(-1, sequence_length, input_size).to(device)
        labels = labels.to(device)
        outputs = model(images)
        loss = criterion(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (i + 1) % 5 == 0:
            print(f"Epoch [{epoch + 1}/{num_epochs}], Step [{i + 1}/{total_step}], Loss: {loss.item():.4f}")
torch.save(model.state_dict(), sys.argv[1])
