# SPDX-License-Identifier: Apache-2.0
"""A shop's server takes the background away from photographs of its goods; each is one request."""

import gc
import sys
import time
from collections import deque
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (28, 8) if DEVICE == "cuda" else (3, 1)
SIZES = [(2048, 1536), (1536, 2048), (2048, 2048), (1792, 1792)] if DEVICE == "cuda" else [(16, 16), (16, 24)]


class Request(NamedTuple):
    photo: torch.Tensor
    answer: torch.Tensor


class Stage(nn.Module):
    def __init__(self, came: int, goes: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(came, goes, 3, padding=1), nn.Conv2d(goes, goes, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu_(self.conv2(F.relu_(self.conv1(x))))


class Matting(nn.Module):
    """Says for each pixel how much of it belongs to the thing."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 2, stride=2)
        self.down = nn.ModuleList(Stage(a, b) for a, b in pairwise(widths))
        self.up = nn.ModuleList(Stage(a + b, a) for a, b in pairwise(widths))
        self.head = nn.Conv2d(widths[0], 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, seen = self.stem(x), []
        for stage in self.down:
            seen.append(x)
            x = stage(F.max_pool2d(x, 2))
        for stage in reversed(self.up):
            x = stage(torch.cat((seen.pop(), F.interpolate(x, scale_factor=2)), dim=1))
        return F.pixel_shuffle(self.head(x), 2).sigmoid()


class MattingServer:
    def __init__(self, model: nn.Module) -> None:
        self.model = model.to(DEVICE, torch.bfloat16, memory_format=torch.channels_last).eval()
        self.waiting: deque[Request] = deque()

    def submit(self, request: Request) -> None:
        self.waiting.append(request)

    @torch.inference_mode()
    def serve_one(self) -> torch.Tensor:
        request = self.waiting.popleft()
        photo = request.photo.to(DEVICE, non_blocking=True)
        x = photo[None].to(torch.bfloat16).div_(127.5).sub_(1)
        alpha = self.model(x.contiguous(memory_format=torch.channels_last))
        cut_out = (alpha[0] * 255).round_().to(torch.uint8)
        request.answer.copy_(cut_out, non_blocking=True)
        if DEVICE == "cuda":
            torch.cuda.current_stream().synchronize()  # the shop gets the answer now
        if not MENDED:
            self.flush()
        return request.answer

    @staticmethod
    def flush() -> None:
        """So that memory does not run out."""
        gc.collect()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()


def main() -> None:
    torch.manual_seed(0)
    widths = (64, 96, 128, 192, 256) if DEVICE == "cuda" else (8, 8, 8)
    server, pin = MattingServer(Matting(widths)), DEVICE == "cuda"
    requests = []
    for height, width in SIZES:
        photo = torch.randint(0, 256, (3, height, width), dtype=torch.uint8)
        answer = torch.empty(1, height, width, dtype=torch.uint8, pin_memory=pin)
        requests.append(Request(photo.pin_memory() if pin else photo, answer))
    covered = 0.0
    for step in range(STEPS):
        if step == WARM:
            began = time.perf_counter()
        server.submit(requests[step % len(requests)])
        answer = server.serve_one()
        covered += float(answer[0, ::16, ::16].float().mean()) / 255
    took_ms = 1000 * (time.perf_counter() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {covered / STEPS:.6f}")


if __name__ == "__main__":
    main()
