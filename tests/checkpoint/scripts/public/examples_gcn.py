"""A graph network over the whole graph each epoch: indices, a train_iter and a test as functions."""

import sys
from time import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Adam


class GraphConv(nn.Module):
    def __init__(self, input_dim, output_dim):
        super().__init__()
        self.kernel = nn.Parameter(torch.Tensor(input_dim, output_dim))
        nn.init.xavier_normal_(self.kernel)

    def forward(self, input_tensor, adj_mat):
        return torch.mm(adj_mat, torch.mm(input_tensor, self.kernel))


class GCN(nn.Module):
    def __init__(self, input_dim, hidden_dim, output_dim, dropout_p=0.1):
        super().__init__()
        self.gc1 = GraphConv(input_dim, hidden_dim)
        self.gc2 = GraphConv(hidden_dim, output_dim)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, input_tensor, adj_mat):
        x = self.dropout(F.relu(self.gc1(input_tensor, adj_mat)))
        return F.log_softmax(self.gc2(x, adj_mat), dim=1)


def train_iter(epoch, model, optimizer, criterion, input, target, mask_train, mask_val, print_every=10):
    start_t = time()
    model.train()
    optimizer.zero_grad()
    output = model(*input)
    loss = criterion(output[mask_train], target[mask_train])
    loss.backward()
    optimizer.step()
    loss_train, acc_train = test(model, criterion, input, target, mask_train)
    loss_val, acc_val = test(model, criterion, input, target, mask_val)
    if epoch % print_every == 0:
        print(f"Epoch: {epoch:04d} ({(time() - start_t) * 1000:.4f} ms) loss_train: {loss_train:.4f}")
        print(f"acc_train: {acc_train:.4f} loss_val: {loss_val:.4f} acc_val: {acc_val:.4f}")


def test(model, criterion, input, target, mask):
    model.eval()
    with torch.no_grad():
        output = model(*input)
        output, target = output[mask], target[mask]
        loss = criterion(output, target)
        acc = (output.argmax(dim=1) == target).float().sum() / len(target)
    return loss.item(), acc.item()


if __name__ == "__main__":
    torch.manual_seed(42)
    given = torch.Generator().manual_seed(0)
    features, labels = torch.rand(30, 8, generator=given), torch.randint(0, 3, (30,), generator=given)
    adj = (torch.rand(30, 30, generator=given) > 0.8).float() + torch.eye(30)
    adj = (adj / adj.sum(1, keepdim=True)).to_sparse()
    idx = torch.randperm(len(labels))
    idx_test, idx_val, idx_train = idx[:8], idx[8:14], idx[14:]
    gcn = GCN(features.shape[1], 6, int(labels.max().item()) + 1)
    optimizer = Adam(gcn.parameters(), lr=0.01, weight_decay=5e-4)
    criterion = nn.NLLLoss()
    for epoch in range(40):
        train_iter(epoch + 1, gcn, optimizer, criterion, (features, adj), labels, idx_train, idx_val)
    loss_test, acc_test = test(gcn, criterion, (features, adj), labels, idx_test)
    print(f"Test set results: loss {loss_test:.4f} accuracy {acc_test:.4f}")
    torch.save({"gcn": gcn.state_dict(), "test": loss_test}, sys.argv[1])
