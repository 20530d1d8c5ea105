"""A switch for mixed precision that is off: autocast and scaler stay in the code."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_args():
    parser = argparse.ArgumentParser(description="Train the segmentation network on pictures and masks")
    parser.add_argument("out", help="where the model goes")
    parser.add_argument("--epochs", "-e", metavar="E", type=int, default=3)
    parser.add_argument("--batch-size", "-b", dest="batch_size", type=int, default=4)
    parser.add_argument("--learning-rate", "-l", type=float, default=1e-3, dest="lr")
    parser.add_argument("--amp", action="store_true", default=False)
    return parser.parse_args()


def dice(mask, target, epsilon=1e-6):
    both = 2 * (mask * target).sum()
    return (both + epsilon) / (mask.sum() + target.sum() + epsilon)


def train_model(model, out, epochs, batch_size, learning_rate, amp):
    pictures = torch.rand(40, 1, 6, 6)
    masks = (pictures > 0.6).float()
    train_loader = DataLoader(TensorDataset(pictures, masks), shuffle=True, batch_size=batch_size)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=learning_rate, momentum=0.9, foreach=True)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=1)
    grad_scaler = torch.amp.GradScaler("cpu", enabled=amp)
    criterion = nn.BCEWithLogitsLoss()
    global_step, scores = 0, []
    for epoch in range(1, epochs + 1):
        model.train()
        epoch_loss = 0
        for batch in train_loader:
            images, true_masks = batch
            with torch.autocast("cpu", enabled=amp):
                masks_pred = model(images)
                loss = criterion(masks_pred, true_masks)
                loss += 1 - dice(F.sigmoid(masks_pred), true_masks)
            optimizer.zero_grad(set_to_none=True)
            grad_scaler.scale(loss).backward()
            grad_scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            grad_scaler.step(optimizer)
            grad_scaler.update()
            global_step += 1
            epoch_loss += loss.item()
            if global_step % 5 == 0:
                model.eval()
                with torch.no_grad():
                    score = dice((model(pictures) > 0).float(), masks)
                model.train()
                scheduler.step(score)
                scores.append(score.item())
        print(f"Epoch {epoch}/{epochs}: loss {epoch_loss / len(train_loader):.4f}")
    torch.save({"model": model.state_dict(), "scores": scores, "step": global_step}, out)


if __name__ == "__main__":
    args = get_args()
    torch.manual_seed(25)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 1, 1))
    train_model(net, args.out, args.epochs, args.batch_size, args.lr, args.amp)
