"""torch's own AveragedModel with a decay, and buffers that are averaged as well."""

import sys

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(27)
    X = torch.randn(70, 9)
    Y = torch.randint(0, 4, (70,))
    model = nn.Sequential(nn.Linear(9, 18), nn.BatchNorm1d(18), nn.ReLU(), nn.Linear(18, 4))
    ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)
    loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True, drop_last=True)
    accuracies = {"model": [], "ema": []}
    for epoch in range(4):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y, label_smoothing=0.1).backward()
            optimizer.step()
            ema_model.update_parameters(model)
        for name, net in (("model", model), ("ema", ema_model)):
            net.eval()
            with torch.no_grad():
                accuracies[name].append((net(X).argmax(1) == Y).float().mean().item())
        print(epoch, {name: f"{values[-1]:.3f}" for name, values in accuracies.items()})
    torch.save({"ema": ema_model.state_dict(), "model": model.state_dict(), **accuracies}, sys.argv[1])


main()
