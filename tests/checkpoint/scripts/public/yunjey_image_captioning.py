"""Captions for images: a sorted collate function, packed sequences, an encoder that is half frozen."""

import argparse
import os

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, Dataset


class Vocabulary:
    def __init__(self):
        self.word2idx = {}
        self.idx2word = {}
        self.idx = 0

    def add_word(self, word):
        if word not in self.word2idx:
            self.word2idx[word] = self.idx
            self.idx2word[self.idx] = word
            self.idx += 1

    def __call__(self, word):
        return self.word2idx.get(word, self.word2idx["<unk>"])

    def __len__(self):
        return len(self.word2idx)


class Captions(Dataset):
    def __init__(self, vocab):
        given = np.random.RandomState(0)
        self.vocab = vocab
        self.images = given.randn(48, 3, 6, 6).astype("float32")
        words = ["one", "two", "three", "four", "sky"]
        self.captions = [list(given.choice(words, given.randint(1, 6))) for _ in range(48)]

    def __getitem__(self, index):
        caption = [self.vocab("<start>"), *[self.vocab(w) for w in self.captions[index]], self.vocab("<end>")]
        return torch.from_numpy(self.images[index]), torch.Tensor(caption)

    def __len__(self):
        return len(self.images)


def collate_fn(data):
    data.sort(key=lambda x: len(x[1]), reverse=True)
    images, captions = zip(*data)
    lengths = [len(cap) for cap in captions]
    targets = torch.zeros(len(captions), max(lengths)).long()
    for i, cap in enumerate(captions):
        end = lengths[i]
        targets[i, :end] = cap[:end]
    return torch.stack(images, 0), targets, lengths


class EncoderCNN(nn.Module):
    def __init__(self, embed_size):
        super().__init__()
        self.resnet = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())
        self.linear = nn.Linear(64, embed_size)
        self.bn = nn.BatchNorm1d(embed_size, momentum=0.01)

    def forward(self, images):
        with torch.no_grad():
            features = self.resnet(images)
        return self.bn(self.linear(features.reshape(features.size(0), -1)))


class DecoderRNN(nn.Module):
    def __init__(self, embed_size, hidden_size, vocab_size):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, embed_size)
        self.lstm = nn.LSTM(embed_size, hidden_size, batch_first=True)
        self.linear = nn.Linear(hidden_size, vocab_size)

    def forward(self, features, captions, lengths):
        embeddings = torch.cat((features.unsqueeze(1), self.embed(captions)), 1)
        packed = pack_padded_sequence(embeddings, lengths, batch_first=True)
        hiddens, _ = self.lstm(packed)
        return self.linear(hiddens[0])


def main(args):
    if not os.path.exists(args.model_path):
        os.makedirs(args.model_path)
    vocab = Vocabulary()
    for word in ("<pad>", "<start>", "<end>", "<unk>", "one", "two", "three", "four"):
        vocab.add_word(word)
    data_loader = DataLoader(Captions(vocab), args.batch_size, shuffle=True, collate_fn=collate_fn)
    encoder = EncoderCNN(args.embed_size)
    decoder = DecoderRNN(args.embed_size, args.hidden_size, len(vocab))
    criterion = nn.CrossEntropyLoss()
    params = list(decoder.parameters()) + list(encoder.linear.parameters()) + list(encoder.bn.parameters())
    optimizer = torch.optim.Adam(params, lr=args.learning_rate)
    total_step = len(data_loader)
    for epoch in range(args.num_epochs):
        for i, (images, captions, lengths) in enumerate(data_loader):
            targets = pack_padded_sequence(captions, lengths, batch_first=True)[0]
            features = encoder(images)
            outputs = decoder(features, captions, lengths)
            loss = criterion(outputs, targets)
            decoder.zero_grad()
            encoder.zero_grad()
            loss.backward()
            optimizer.step()
            if i % args.log_step == 0:
                print(f"Epoch [{epoch}/{args.num_epochs}], Step [{i}/{total_step}], Loss: {loss.item():.4f}")
            if (i + 1) % args.save_step == 0:
                name = f"{epoch + 1}-{i + 1}.ckpt"
                torch.save(decoder.state_dict(), os.path.join(args.model_path, "decoder-" + name))
                torch.save(encoder.state_dict(), os.path.join(args.model_path, "encoder-" + name))
    torch.save({"encoder": encoder.state_dict(), "decoder": decoder.state_dict()}, args.save_to)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("save_to")
    parser.add_argument("--model_path", type=str, default="models/")
    parser.add_argument("--log_step", type=int, default=4)
    parser.add_argument("--save_step", type=int, default=6)
    parser.add_argument("--embed_size", type=int, default=8)
    parser.add_argument("--hidden_size", type=int, default=8)
    parser.add_argument("--num_epochs", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=6)
    parser.add_argument("--learning_rate", type=float, default=0.001)
    args = parser.parse_args()
    print(args)
    main(args)
