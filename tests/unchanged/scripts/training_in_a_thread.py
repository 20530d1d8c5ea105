"""The loop is not in the main thread, and torch is imported where it is needed."""

import sys
import threading


def train(path):
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(6)
    loader = DataLoader(TensorDataset(torch.randn(40, 3), torch.randn(40, 1)), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        print(epoch, repr(loss.item()))
    torch.save(model.state_dict(), path)


thread = threading.Thread(target=train, args=(sys.argv[1],), name="trainer")
thread.start()
thread.join()
