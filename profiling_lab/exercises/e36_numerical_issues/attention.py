# SPDX-License-Identifier: Apache-2.0
"""One block of cross-attention with normalised queries and keys, written out.

python attention.py
"""

import torch

EPSILON = 1e-5
CHUNK = 4
SUMS = torch.bfloat16
CASES = ("usual", "offset", "scale", "masked", "long", "padded")


def layer_norm(x, weight, bias):
    """Each row with mean 0 and variance 1, then scaled and shifted."""
    mean = x.mean(-1, keepdim=True)
    variance = x.square().mean(-1, keepdim=True) - mean.square()
    normal = (x - mean) / (variance + EPSILON).sqrt()
    return normal * weight + bias


def unit(x):
    """Each row with length 1; a row of zeros stays one."""
    length = x.square().sum(-1, keepdim=True).sqrt()
    return torch.where(length > 0, x / length, torch.zeros_like(x))


def attend(q, k, v, allowed, scale):
    """The mean of the values for each query, weighted by softmax over the keys that it is allowed to see."""
    scores = scale * (q @ k.T)
    scores = scores.masked_fill(~allowed, float("-inf"))
    weights = scores.exp()
    total = torch.zeros(len(q), 1, dtype=SUMS)
    mixed = torch.zeros(len(q), v.shape[1], dtype=SUMS)
    for start in range(0, len(k), CHUNK):
        part = weights[:, start : start + CHUNK]
        total = total + part.sum(-1, keepdim=True).to(SUMS)
        mixed = mixed + (part @ v[start : start + CHUNK]).to(SUMS)
    return (mixed / total).to(q.dtype)


def block(x, context, parameters, allowed, scale):
    """(queries, width) and (keys, width) to (queries, width). A query that sees no key gets nothing added."""
    x = layer_norm(x, parameters["weight"], parameters["bias"])
    q, k, v = unit(x @ parameters["q"]), unit(context @ parameters["k"]), context @ parameters["v"]
    return x + attend(q, k, v, allowed, scale) @ parameters["out"]


def make_case(name, seed=0):
    """Inputs of `block` in float32: x, context, parameters, allowed, scale. The same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    queries, keys, width, scale = 24, 64, 16, 4.0
    if name == "long":
        keys = 2048
    x, context = (torch.randn(rows, width, generator=generator) for rows in (queries, keys))
    parameters = {
        name: torch.randn(width, width, generator=generator) / width**0.5 for name in ("q", "k", "v", "out")
    }
    parameters["weight"] = 1 + 0.1 * torch.randn(width, generator=generator)
    parameters["bias"] = torch.zeros(width)
    allowed = torch.rand(queries, keys, generator=generator) < 0.9
    allowed[:, 0] = True
    if name == "offset":
        x += 2000
    if name == "scale":
        scale = 400.0
    if name == "masked":
        allowed[5:8] = False
    if name == "padded":
        x[-3:] = 0
    return x, context, parameters, allowed, scale


def with_gradients(inputs):
    """The result for these inputs, and the gradients of its sum of squares."""
    x, context, parameters, allowed, scale = inputs
    leaves = {"x": x, "context": context, **parameters}
    leaves = {name: value.detach().clone().requires_grad_() for name, value in leaves.items()}
    of_parameters = {name: leaves[name] for name in parameters}
    result = block(leaves["x"], leaves["context"], of_parameters, allowed, scale)
    result.square().sum().backward()
    return result.detach(), {name: value.grad for name, value in leaves.items()}


def main():
    for name in CASES:
        result, gradients = with_gradients(make_case(name))
        numbers = torch.cat([each.flatten() for each in gradients.values()])
        sizes = [each.square().mean().sqrt() for each in (result, numbers)]
        print(f"{name:8} result {sizes[0]:.6f}, gradients {sizes[1]:.6f}")


if __name__ == "__main__":
    main()
