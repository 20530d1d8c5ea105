"""A student learns from a frozen teacher."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(90)


def make_net(width):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 4))


teacher, student = make_net(64), make_net(8)
teacher.eval()
for p in teacher.parameters():
    p.requires_grad_(False)
x = torch.randn(80, 8)
with torch.no_grad():
    y = teacher(x).argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
T, alpha = 3.0, 0.7


def distillation_loss(student_logits, teacher_logits, labels):
    soft = F.kl_div(
        F.log_softmax(student_logits / T, dim=1), F.softmax(teacher_logits / T, dim=1), reduction="batchmean"
    )
    return alpha * T * T * soft + (1 - alpha) * F.cross_entropy(student_logits, labels)


agreement = []
for epoch in range(4):
    student.train()
    for inputs, labels in loader:
        with torch.no_grad():
            teacher_logits = teacher(inputs)
        loss = distillation_loss(student(inputs), teacher_logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    student.eval()
    with torch.no_grad():
        agreement.append((student(x).argmax(1) == y).float().mean().item())
    print(f"epoch {epoch}: the student agrees in {agreement[-1]:.3f}")

torch.save({"student": student.state_dict(), "agreement": agreement}, sys.argv[1])
