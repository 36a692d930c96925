# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a model that draws what captions say, with two text encoders and accumulated gradients."""

import argparse
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 4) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


def parse_args() -> argparse.Namespace:
    on_gpu = DEVICE == "cuda"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--train_batch_size", type=int, default=6 if on_gpu else 2)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=4 if on_gpu else 2)
    parser.add_argument("--max_grad_norm", type=float, default=1.0)
    parser.add_argument("--text_layers", type=int, nargs=2, default=(32, 24) if on_gpu else (2, 1))
    parser.add_argument("--text_width", type=int, default=512 if on_gpu else 16)
    parser.add_argument("--width", type=int, default=1536 if on_gpu else 16)
    parser.add_argument("--patches", type=int, default=1024 if on_gpu else 9)
    parser.add_argument("--learning_rate", type=float, default=1e-5)
    return parser.parse_args()


class Layer(nn.Module):
    def __init__(self, width: int, head: int = 64) -> None:
        super().__init__()
        self.heads = max(1, width // head)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(hidden)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        hidden = hidden + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return hidden + self.fc2(F.gelu(self.fc1(self.norm2(hidden))))


class TextEncoder(nn.Module):
    def __init__(self, words: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.layers, self.norm = nn.Sequential(*(Layer(width) for _ in range(layers))), nn.LayerNorm(width)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layers(self.words(input_ids) + self.places))


class Denoiser(nn.Module):
    def __init__(self, channels: int, patches: int, width: int, context: int) -> None:
        super().__init__()
        self.into, self.context = nn.Linear(channels, width), nn.Linear(context, width)
        self.places = nn.Parameter(0.02 * torch.randn(patches, width))
        self.time = nn.Embedding(1000, width)
        self.layers, self.norm = nn.Sequential(Layer(width), Layer(width)), nn.LayerNorm(width)
        self.out = nn.Linear(width, channels)

    def forward(self, noisy: torch.Tensor, timesteps: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        image = self.into(noisy) + self.places + self.time(timesteps)[:, None]
        hidden = self.layers(torch.cat([self.context(states), image], dim=1))
        return self.out(self.norm(hidden[:, states.shape[1] :]))


def main() -> None:
    args = parse_args()
    torch.manual_seed(0)
    channels, words, length, rows = 16, 4096, 24, args.train_batch_size
    encoders = [TextEncoder(words, length, args.text_width, layers) for layers in args.text_layers]
    encoders = [encoder.to(DEVICE, torch.bfloat16).eval().requires_grad_(False) for encoder in encoders]
    model = Denoiser(channels, args.patches, args.width, args.text_width * len(encoders)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, fused=DEVICE == "cuda")
    signal = torch.linspace(0.999, 0.02, 1000, device=DEVICE).sqrt()[:, None, None]
    spread = (1 - signal.square()).sqrt()
    dataset = [
        {"latents": torch.randn(rows, args.patches, channels), "ids": torch.randint(0, words, (rows, length))}
        for _ in range(8)
    ]
    if DEVICE == "cuda":
        dataset = [{name: part.pin_memory() for name, part in batch.items()} for batch in dataset]
    history, number = [], 0
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        train_loss: Any = 0.0
        for _ in range(args.gradient_accumulation_steps):
            batch = {k: v.to(DEVICE, non_blocking=True) for k, v in dataset[number % len(dataset)].items()}
            number += 1
            with torch.no_grad():
                states = torch.cat([encoder(batch["ids"]) for encoder in encoders], dim=-1)
            noise = torch.randn_like(batch["latents"])
            timesteps = torch.randint(0, 1000, (rows,), device=DEVICE)
            noisy = signal[timesteps] * batch["latents"] + spread[timesteps] * noise
            with torch.autocast(DEVICE, torch.bfloat16):
                guess = model(noisy, timesteps, states)
            loss = F.mse_loss(guess.float(), noise) / args.gradient_accumulation_steps
            loss.backward()
            train_loss += loss.detach() if MENDED else loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        history.append(train_loss)
    report(began, torch.as_tensor(history).mean())


if __name__ == "__main__":
    main()
