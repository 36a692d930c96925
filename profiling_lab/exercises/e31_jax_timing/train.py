# SPDX-License-Identifier: Apache-2.0
"""Train a small network with JAX and print how long a step takes: the program to be profiled.

python train.py
python train.py --steps 10
"""

import argparse
import math
import statistics
import time
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

INPUTS, CLASSES = 32, 10


@dataclass(frozen=True)
class Settings:
    """How the network is trained."""

    rate: float = 0.05
    momentum: float = 0.9
    decay: float = 1e-4
    smoothing: float = 0.1


def make_params(seed=0, width=256, depth=6):
    """The weights, and their velocities."""
    random = np.random.default_rng(seed)
    sizes = [INPUTS, *[width] * depth, CLASSES]
    shapes = [(sizes[i], sizes[i + 1]) for i in range(depth + 1)]
    weights = [jnp.asarray(random.normal(0, math.sqrt(2 / s[0]), s), "float32") for s in shapes]
    return weights, [jnp.zeros_like(each) for each in weights]


def make_batches(count, seed=1, rows=512):
    """Random inputs with random classes."""
    random = np.random.default_rng(seed)
    return [
        (
            jnp.asarray(random.normal(size=(rows, INPUTS)), "float32"),
            jnp.asarray(random.integers(CLASSES, size=rows)),
        )
        for _ in range(count)
    ]


def loss_of(weights, x, labels, smoothing):
    """The cross entropy of the network's scores, with smoothed labels."""
    for weight in weights[:-1]:
        x = jax.nn.relu(x @ weight)
    wanted = jax.nn.one_hot(labels, CLASSES) * (1 - smoothing) + smoothing / CLASSES
    return -jnp.mean(jnp.sum(wanted * jax.nn.log_softmax(x @ weights[-1]), axis=-1))


@partial(jax.jit, static_argnames="settings")
def update(params, batch, settings):
    """One step of SGD with momentum: the new params, and the loss."""
    weights, velocities = params
    loss, gradients = jax.value_and_grad(loss_of)(weights, *batch, settings.smoothing)
    velocities = [
        settings.momentum * v + g + settings.decay * w
        for v, g, w in zip(velocities, gradients, weights, strict=True)
    ]
    return ([w - settings.rate * v for w, v in zip(weights, velocities, strict=True)], velocities), loss


def train(params, batches, settings):
    """One step for each batch. Returns the new params, the losses, and the seconds that each step took."""
    losses, times = [], []
    for number, batch in enumerate(batches):
        now = replace(settings, rate=settings.rate * 0.9 ** (number // 4))
        begin = time.perf_counter()
        params, loss = update(params, batch, now)
        times.append(time.perf_counter() - begin)
        losses.append(float(loss))
    return params, losses, times


def main():
    parser = argparse.ArgumentParser(description="Train a small network with JAX.")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    params, batches = make_params(), make_batches(args.steps)
    begin = time.perf_counter()
    _, losses, times = train(params, batches, Settings())
    took = time.perf_counter() - begin
    print(f"{args.steps} steps on {jax.default_backend()}, loss {losses[-1]:.4f}")
    print(f"a step takes {1e3 * statistics.median(times):.2f} ms; {args.steps} steps took {took:.2f} s")


if __name__ == "__main__":
    main()
