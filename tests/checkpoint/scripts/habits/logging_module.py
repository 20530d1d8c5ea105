"""The logging module instead of print, to a file and the console."""

import logging
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(
    level=logging.INFO,
    format="%(asctime)s %(levelname)s %(message)s",
    handlers=[logging.FileHandler("train.log"), logging.StreamHandler(sys.stdout)],
)
logger = logging.getLogger(__name__)


def main():
    torch.manual_seed(102)
    data = TensorDataset(torch.randn(60, 4), torch.randint(0, 2, (60,)))
    train_loader = DataLoader(data, batch_size=6, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 2))
    logger.info("model has %d parameters", sum(p.numel() for p in model.parameters()))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step, running = 0, 0.0
    averages = []
    for epoch in range(4):
        for x, y in train_loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            running += loss.item()
            if step % 8 == 0:
                averages.append(running / 8)
                logger.info("step %d: loss %.4f", step, averages[-1])
                running = 0.0
        logger.info("epoch %d is over", epoch)
    torch.save({"model": model.state_dict(), "averages": averages}, sys.argv[1])


if __name__ == "__main__":
    main()
