# SPDX-License-Identifier: Apache-2.0
"""Train a classifier with many classes, evaluate it, and profile the memory of both. Writes trace.json.

python train.py
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, record_function

ROWS, WIDTH, LAYERS, CLASSES = 512, 128, 4, 2048
SMALL = (8, 16, 2, 32)
STEPS, EVALUATIONS = 6, 6
SMOOTHING = 0.1


class Classifier(nn.Module):
    """Hidden layers and a score for each class. It notes how active its hidden units are."""

    def __init__(self, width, layers, classes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.scores = nn.Linear(width, classes)
        self.seen = []

    def forward(self, x):
        with record_function("forward"):
            for layer in self.layers:
                x = F.gelu(layer(x))
                self.seen.append(x)
            return self.scores(x)

    def activity(self):
        """The mean of each hidden unit over all layers and all inputs so far."""
        return torch.cat(self.seen).mean(0)


def make_batch(generator, size):
    """Random inputs and labels."""
    rows, width, _, classes = size
    return torch.randn(rows, width, generator=generator), torch.randint(classes, (rows,), generator=generator)


def loss_of(scores, labels):
    """Cross-entropy against labels of which a small part is spread over all classes."""
    with record_function("loss"):
        classes = scores.shape[1]
        wanted = F.one_hot(labels, classes) * (1 - SMOOTHING) + SMOOTHING / classes
        return -(wanted * F.log_softmax(scores, dim=1)).sum(1).mean()


def training_step(model, optimizer, generator, size):
    """One step. Returns its loss."""
    with record_function("train"):
        x, labels = make_batch(generator, size)
        optimizer.zero_grad()
        loss = loss_of(model(x), labels)
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            optimizer.step()
        return loss.item()


def evaluate(model, batches, generator, size):
    """The mean loss of that number of batches."""
    total = 0
    with record_function("evaluate"):
        for _ in range(batches):
            x, labels = make_batch(generator, size)
            loss = loss_of(model(x), labels)
            total = total + loss
    return (total / batches).item()


def train(steps=STEPS, batches=EVALUATIONS, seed=0, size=(ROWS, WIDTH, LAYERS, CLASSES)):
    """Train, then evaluate. Returns the losses of the steps, that of the evaluation, activity and model."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Classifier(*size[1:])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = [training_step(model, optimizer, generator, size) for _ in range(steps)]
    evaluated = evaluate(model, batches, generator, size)
    return losses, evaluated, model.activity().detach(), model


def main():
    parser = argparse.ArgumentParser(description="Train, evaluate, profile, and write trace.json.")
    parser.add_argument("--small", action="store_true", help="a second on any CPU")
    args = parser.parse_args()
    torch.set_num_threads(1)
    size = SMALL if args.small else (ROWS, WIDTH, LAYERS, CLASSES)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        losses, evaluated, activity, _ = train(size=size)
    print(profiler.key_averages().table(sort_by="self_cpu_memory_usage", row_limit=8))
    profiler.export_chrome_trace("trace.json")
    print(f"loss {losses[-1]:.4f}, evaluated {evaluated:.4f}, activity {activity.mean():.4f}")


if __name__ == "__main__":
    main()
