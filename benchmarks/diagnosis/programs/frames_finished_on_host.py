# SPDX-License-Identifier: Apache-2.0
"""Old films are shown twice as large: a small network draws each frame anew, and an encoder gets it."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (36, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Enlarger(nn.Module):
    """Convolutions at the small size; what they find is added to the frame with its pixels repeated."""

    def __init__(self, width: int, depth: int, scale: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU(inplace=True)]
        for _ in range(depth):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*layers, nn.Conv2d(width, 3 * scale**2, 3, padding=1))
        self.shuffle, self.scale = nn.PixelShuffle(scale), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shuffle(self.body(x)) + F.interpolate(x, scale_factor=self.scale, mode="nearest")


class Encoder:
    """Takes frames as rows of pixels in 8 bits. This one only looks at their brightness."""

    def __init__(self) -> None:
        self.bright: list[float] = []

    def add(self, frame: np.ndarray) -> None:
        if frame.dtype != np.uint8 or not frame.flags.c_contiguous:
            raise ValueError("expected a frame of bytes, row by row")
        self.bright.append(float(frame[::16, ::16].mean()))


class Film:
    def __init__(self, model: Enlarger, height: int, width: int) -> None:
        self.model = model
        shape = (height * model.scale, width * model.scale, 3)
        self.room = torch.zeros(shape, dtype=torch.uint8, pin_memory=DEVICE == "cuda")

    def enlarge(self, frame: torch.Tensor) -> torch.Tensor:
        x = frame.to(DEVICE, non_blocking=True).permute(2, 0, 1)[None]
        return self.model(x.to(torch.bfloat16).div_(255))

    def finished(self, output: torch.Tensor) -> np.ndarray:
        """The frame as the encoder wants it."""
        if MENDED:
            image = output[0].float().clamp_(0, 1).permute(1, 2, 0)
            self.room.copy_((image * 255.0).round().to(torch.uint8), non_blocking=True)
            if DEVICE == "cuda":
                torch.cuda.current_stream().synchronize()
            return self.room.numpy()
        picture = output[0].float().cpu().clamp_(0, 1).numpy()
        picture = np.transpose(picture, (1, 2, 0))
        picture = (picture * 255.0).round().astype(np.uint8)
        return np.ascontiguousarray(picture)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    height, width, channels, depth = (720, 1280, 64, 8) if DEVICE == "cuda" else (6, 8, 4, 1)
    torch.backends.cudnn.benchmark = True
    model = Enlarger(channels, depth, 2).to(DEVICE, torch.bfloat16, memory_format=torch.channels_last).eval()
    frames = torch.randint(0, 256, (4, height, width, 3), dtype=torch.uint8)
    if DEVICE == "cuda":
        frames = frames.pin_memory()
    film, encoder = Film(model, height, width), Encoder()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        encoder.add(film.finished(film.enlarge(frames[step % 4])))
    report(began, torch.tensor(encoder.bright).mean())


if __name__ == "__main__":
    main()
