# SPDX-License-Identifier: Apache-2.0
"""Train the model of model.py for a few batches: the program to be profiled.

    python train_model.py --epochs 2
    python train_model.py --heavy loop
    python train_model.py --batches 2          # without a GPU: small sizes, a second or two

The data is made up, but it has a rule that can be learnt, so the loss must fall from one epoch to the next:
a program that only looks as if it trained is not worth a profile. Every step is the same work. Nothing here
waits for the GPU inside of an epoch; where the time of a step is printed, the GPU has finished. The first
epoch includes what the libraries do only once.
"""

import argparse
import time

import torch
import torch.nn as nn
from model import HEAVY, ON_GPU, TransformerWithHeavyLayer, layer_range
from torch.utils.data import DataLoader, TensorDataset

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def create_dummy_dataloader(batch_size=32, seq_len=128, vocab_size=10000, batches=16, seed=0):
    """Sentences with a rule to learn: each word decides the next. The same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    words = min(vocab_size, 97)
    follower = torch.randperm(words, generator=generator)
    sentence = [torch.randint(words, (batch_size * batches,), generator=generator)]
    for _ in range(seq_len):
        sentence.append(follower[sentence[-1]])
    tokens = torch.stack(sentence, dim=1)
    return DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size=batch_size)


def training_step(model, data, target, optimizer, dtype=torch.float32):
    """Forward, loss, backward, update: the unit that every profile of this program repeats."""
    with layer_range("training_step"):
        optimizer.zero_grad()
        with torch.autocast(data.device.type, dtype, enabled=dtype != torch.float32):
            output = model(data)
            loss = nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())
        loss.backward()
        optimizer.step()
    return loss.detach()


def train_epoch(model, dataloader, optimizer, device, batches=10, dtype=torch.float32):
    """One short epoch. Returns the mean loss and the mean time of a step in milliseconds."""
    model.train()
    losses = []
    begin = time.perf_counter()
    for data, target in dataloader:
        data, target = data.to(device), target.to(device)
        losses.append(training_step(model, data, target, optimizer, dtype))
        if len(losses) >= batches:  # a profile needs a few steps, not an epoch
            break
    loss = torch.stack(losses).mean().item()  # .item() waits for the GPU, so the clock below is honest
    return loss, (time.perf_counter() - begin) * 1e3 / len(losses)


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(description="Train a small language model on dummy data.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batches", type=int, default=10, help="steps per epoch (10)")
    parser.add_argument(
        "--heavy", choices=("slow", "loop", "fast"), default=HEAVY, help="HeavyLayer's implementation"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="by autocast, without loss scaling")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=32 if ON_GPU else 4)
    parser.add_argument("--seq-len", type=int, default=128 if ON_GPU else 32)
    parser.add_argument("--vocab-size", type=int, default=10000 if ON_GPU else 1000)
    parser.add_argument("--d-model", type=int, default=512 if ON_GPU else 64)
    parser.add_argument("--nhead", type=int, default=8)
    parser.add_argument("--num-layers", type=int, default=4 if ON_GPU else 2)
    return parser.parse_args(argv)


def build(args):
    """Everything that train_epoch needs, from the arguments: model, dataloader, optimizer, device."""
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    model = TransformerWithHeavyLayer(
        vocab_size=args.vocab_size,
        d_model=args.d_model,
        nhead=args.nhead,
        num_layers=args.num_layers,
        heavy=args.heavy,
    ).to(device)
    dataloader = create_dummy_dataloader(
        args.batch_size, args.seq_len, args.vocab_size, args.batches, args.seed
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return model, dataloader, optimizer, device


def main(argv=None):
    args = parse_arguments(argv)
    training = build(args)
    for epoch in range(args.epochs):
        loss, step_ms = train_epoch(*training, args.batches, DTYPES[args.dtype])
        print(f"epoch {epoch + 1}: loss {loss:.4f}, {step_ms:.1f} ms per step", flush=True)


if __name__ == "__main__":
    main()
