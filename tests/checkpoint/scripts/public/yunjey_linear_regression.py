"""Linear regression from numpy arrays, in lines at the top of a module."""

import sys

import numpy as np
import torch
from torch import nn

input_size = 1
output_size = 1
num_epochs = 60
learning_rate = 0.001

x_train = np.array([[3.1], [4.2], [5.3], [6.4], [6.9], [4.1], [9.5], [6.1], [7.4], [2.1]], dtype=np.float32)
y_train = np.array([[1.6], [2.9], [2.2], [3.1], [1.7], [1.5], [3.3], [2.5], [2.6], [1.3]], dtype=np.float32)
model = nn.Linear(input_size, output_size)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)

for epoch in range(num_epochs):
    inputs = torch.from_numpy(x_train)
    targets = torch.from_numpy(y_train)
    outputs = model(inputs)
    loss = criterion(outputs, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (epoch + 1) % 5 == 0:
        print(f"Epoch [{epoch + 1}/{num_epochs}], Loss: {loss.item():.4f}")

predicted = model(torch.from_numpy(x_train)).detach().numpy()
torch.save(model.state_dict(), sys.argv[1])
