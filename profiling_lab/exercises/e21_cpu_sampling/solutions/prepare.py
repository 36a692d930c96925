# SPDX-License-Identifier: Apache-2.0
"""Prepare text for training: clean it, cut it into tokens, pack it into sequences.

python prepare.py
python prepare.py --documents 500
"""

import argparse
import random
import re

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
MARKUP = re.compile(r"<[^>]*>")
SPACES = re.compile(r"\s+")


def make_documents(count, seed=0):
    """Short texts with markup in them, the same for the same seed."""
    generator = random.Random(seed)
    words = ["".join(generator.choices(ALPHABET, k=generator.randint(2, 9))) for _ in range(400)]
    documents = []
    for _ in range(count):
        text = generator.choices(words, k=generator.randint(4, 16))
        text.insert(generator.randrange(len(text)), "<b class='x'>")
        documents.append("  ".join(text) + " </b>")
    return documents


def make_vocabulary(seed=0):
    """Single letters, and some pieces of two and three letters, each with its number."""
    generator = random.Random(seed)
    pieces = {"".join(generator.choices(ALPHABET, k=size)) for size in (2, 3) for _ in range(300)}
    return {piece: number for number, piece in enumerate([*ALPHABET, *sorted(pieces)])}


def clean(text):
    """The text without markup, in small letters, with single spaces."""
    return SPACES.sub(" ", MARKUP.sub(" ", text)).strip().lower()


def tokenize(text, vocabulary, longest=3):
    """The numbers of the longest known pieces, word by word."""
    tokens = []
    for word in text.split():
        start = 0
        while start < len(word):
            for end in range(min(len(word), start + longest), start, -1):
                if word[start:end] in vocabulary:
                    tokens.append(vocabulary[word[start:end]])
                    start = end
                    break
    return tokens


class Sequence:
    """Documents that are trained on together: at most `length` tokens."""

    def __init__(self, length):
        self.room = length  # how many tokens still fit
        self.documents = []

    def add(self, tokens):
        self.documents.append(tokens)
        self.room -= len(tokens)


class Packer:
    """Puts each document into the open sequence that it fills best."""

    def __init__(self, length, most_open=24):
        self.length, self.most_open = length, most_open
        self.open, self.closed = [], []

    def place(self, tokens):
        fitting = [sequence for sequence in self.open if len(tokens) <= sequence.room]
        best = min(fitting, key=self.leftover, default=None)
        if best is None:
            best = self.start()
        best.add(tokens)

    def leftover(self, sequence):
        return sequence.room

    def start(self):
        """A new sequence. The fullest is closed if there are too many."""
        if len(self.open) == self.most_open:
            fullest = min(self.open, key=self.leftover)
            self.open.remove(fullest)
            self.closed.append(fullest)
        self.open.append(Sequence(self.length))
        return self.open[-1]

    def finish(self):
        return [sequence.documents for sequence in (*self.closed, *self.open)]


def prepare(documents, vocabulary, length=2048):
    """The tokens of the documents, packed into sequences of at most `length` tokens."""
    packer = Packer(length)
    for document in documents:
        tokens = tokenize(clean(document), vocabulary)
        if tokens:
            packer.place(tokens[:length])
    return packer.finish()


def main():
    parser = argparse.ArgumentParser(description="Pack texts into training sequences.")
    parser.add_argument("--documents", type=int, default=25_000)
    args = parser.parse_args()
    sequences = prepare(make_documents(args.documents), make_vocabulary())
    used = sum(len(tokens) for documents in sequences for tokens in documents)
    print(f"{args.documents} documents, {used} tokens, {len(sequences)} sequences")


if __name__ == "__main__":
    main()
