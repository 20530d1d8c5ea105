"""The language model with repackaged hidden states, with an optimizer whose rate falls."""

import argparse
import math
import time

import torch
from torch import nn

parser = argparse.ArgumentParser(description="RNN language model")
parser.add_argument("save", type=str)
parser.add_argument("--emsize", type=int, default=8)
parser.add_argument("--nhid", type=int, default=8)
parser.add_argument("--lr", type=float, default=5)
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch_size", type=int, default=4)
parser.add_argument("--bptt", type=int, default=5)
parser.add_argument("--seed", type=int, default=1111)
parser.add_argument("--log-interval", type=int, default=4)
args = parser.parse_args()
torch.manual_seed(args.seed)
device = torch.device("cpu")
ntokens = 12


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, 1)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nhid = nhid

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        decoded = self.decoder(self.drop(output)).view(-1, ntokens)
        return torch.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (weight.new_zeros(1, bsz, self.nhid), weight.new_zeros(1, bsz, self.nhid))


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    data = data.narrow(0, 0, nbatch * bsz)
    return data.view(bsz, -1).t().contiguous().to(device)


corpus = torch.randint(0, ntokens, (400,), generator=torch.Generator().manual_seed(0))
train_data = batchify(corpus[:240], args.batch_size)
val_data = batchify(corpus[240:], 2)
model = RNNModel(ntokens, args.emsize, args.nhid).to(device)
criterion = nn.NLLLoss()


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def get_batch(source, i):
    seq_len = min(args.bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


def evaluate(data_source):
    model.eval()
    total_loss = 0.0
    hidden = model.init_hidden(2)
    with torch.no_grad():
        for i in range(0, data_source.size(0) - 1, args.bptt):
            data, targets = get_batch(data_source, i)
            output, hidden = model(data, hidden)
            hidden = repackage_hidden(hidden)
            total_loss += len(data) * criterion(output, targets).item()
    return total_loss / (len(data_source) - 1)


def train():
    model.train()
    total_loss = 0.0
    start_time = time.time()
    hidden = model.init_hidden(args.batch_size)
    for batch, i in enumerate(range(0, train_data.size(0) - 1, args.bptt)):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        total_loss += loss.item()
        if batch % args.log_interval == 0 and batch > 0:
            cur_loss = total_loss / args.log_interval
            elapsed = (time.time() - start_time) * 1000
            print(f"| epoch {epoch} | {elapsed / args.log_interval:5.2f} ms | loss {cur_loss:5.2f}")
            total_loss = 0
            start_time = time.time()


optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
best_val_loss = None
try:
    for epoch in range(1, args.epochs + 1):
        epoch_start_time = time.time()
        train()
        val_loss = evaluate(val_data)
        print(f"| end of epoch {epoch} | {time.time() - epoch_start_time:5.2f} s | {math.exp(val_loss):8.2f}")
        if not best_val_loss or val_loss < best_val_loss:
            with open("best.pt", "wb") as f:
                torch.save(model.state_dict(), f)
            best_val_loss = val_loss
        else:
            optimizer.param_groups[0]["lr"] /= 4.0
except KeyboardInterrupt:
    print("Exiting from training early")

torch.save(
    {"model": model.state_dict(), "best": best_val_loss, "lr": optimizer.param_groups[0]["lr"]}, args.save
)
