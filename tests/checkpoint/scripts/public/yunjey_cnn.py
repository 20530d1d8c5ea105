"""A convolutional network whose learning rate a function lowers, through a variable."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
num_epochs = 4
learning_rate = 0.001
given = torch.Generator().manual_seed(0)
images, labels = torch.randn(80, 3, 8, 8, generator=given), torch.randint(0, 10, (80,), generator=given)
train_loader = DataLoader(dataset=TensorDataset(images[:64], labels[:64]), batch_size=8, shuffle=True)
test_loader = DataLoader(dataset=TensorDataset(images[64:], labels[64:]), batch_size=8, shuffle=False)


class ResidualBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        residual = x
        out = self.bn(self.conv(x))
        out += residual
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, block, layers, num_classes=10):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, kernel_size=3, padding=1, bias=False)
        self.layer = nn.Sequential(*[block(4) for _ in range(layers)])
        self.avg_pool = nn.AvgPool2d(8)
        self.fc = nn.Linear(4, num_classes)

    def forward(self, x):
        out = self.avg_pool(self.layer(self.conv(x)))
        return self.fc(out.view(out.size(0), -1))


model = ResNet(ResidualBlock, 2).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)


def update_lr(optimizer, lr):
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr


total_step = len(train_loader)
curr_lr = learning_rate
for epoch in range(num_epochs):
    for i, (images, labels) in enumerate(train_loader):
        images = images.to(device)
        labels = labels.to(device)
        outputs = model(images)
        loss = criterion(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (i + 1) % 4 == 0:
            print(f"Epoch [{epoch + 1}/{num_epochs}], Step [{i + 1}/{total_step}] Loss: {loss.item():.4f}")
    if (epoch + 1) % 2 == 0:
        curr_lr /= 3
        update_lr(optimizer, curr_lr)

model.eval()
with torch.no_grad():
    correct = 0
    total = 0
    for images, labels in test_loader:
        outputs = model(images)
        _, predicted = torch.max(outputs.data, 1)
        total += labels.size(0)
        correct += (predicted == labels).sum().item()
    print(f"Accuracy of the model on the test images: {100 * correct / total} %")
torch.save(model.state_dict(), sys.argv[1])
