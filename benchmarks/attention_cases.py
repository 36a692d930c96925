# SPDX-License-Identifier: Apache-2.0
"""What benchmark_attention.py measures: problems, and named sets of them with their providers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal

Direction = Literal["forward", "backward"]
BOTH: tuple[Direction, Direction] = ("forward", "backward")
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
ROWS_IN_ALL, COLUMNS_IN_ALL = 16384, 2048
"""Of a problem whose batch and heads are not given: what keeps the work per length comparable."""


@dataclass(frozen=True, slots=True)
class Problem:
    direction: Direction
    head_dim: int
    rows: int
    causal: bool
    batch: int
    heads: int
    kv_heads: int
    dtype: str = "bfloat16"
    head_dim_v: int | None = None
    """Of v, where it is not that of q and k."""

    @property
    def flops(self) -> int:
        """4 b h s^2 d, half of it under a causal mask; backward 2.5 times that, whatever is computed. Where v
        has a head_dim of its own, each product counts its own."""
        dim, dim_v = self.head_dim, self.head_dim_v or self.head_dim
        columns = dim + dim_v if self.direction == "forward" else 3 * dim + 2 * dim_v
        return 2 * self.batch * self.heads * self.rows**2 * columns // (2 if self.causal else 1)

    @property
    def label(self) -> str:
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        mask = "causal" if self.causal else "full"
        dim = f"{self.head_dim}" + (f"/{self.head_dim_v}" if self.head_dim_v else "")
        shape = f"d {dim:<8}s {self.rows:<6}b {self.batch:<3}h {heads:<6}"
        dtype = "" if self.dtype == "bfloat16" else f"{self.dtype} "
        return f"{shape}{mask:<7}{self.direction:<9}{dtype}"


def problem(
    direction: Direction,
    head_dim: int,
    rows: int,
    causal: bool,
    batch: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    dtype: str = "bfloat16",
    head_dim_v: int | None = None,
) -> Problem:
    heads = heads or max(1, COLUMNS_IN_ALL // head_dim)
    batch = batch or max(1, ROWS_IN_ALL // rows)
    return Problem(direction, head_dim, rows, causal, batch, heads, kv_heads or heads, dtype, head_dim_v)


@dataclass(frozen=True, slots=True)
class Suite:
    about: str
    problems: tuple[Problem, ...]
    providers: tuple[str, ...] | None = None
    """None: everybody but those measured on request only."""
    device: str = "cuda"


def _suite(
    about: str,
    *,
    dims: tuple[int, ...] = (128,),
    dim_v: int | None = None,
    rows: tuple[int, ...],
    directions: tuple[Direction, ...] = BOTH,
    batch: int | None = None,
    heads: tuple[tuple[int, int] | None, ...] = (None,),
    dtypes: tuple[str, ...] = ("bfloat16",),
    providers: tuple[str, ...] | None = None,
    device: str = "cuda",
) -> Suite:
    made = [
        problem(direction, dim, length, causal, batch, *(pair or (None, None)), dtype, dim_v)
        for dtype, dim, length, pair, causal, direction in product(
            dtypes, dims, rows, heads, (False, True), directions
        )
    ]
    return Suite(about, tuple(made), providers, device)


FAST = ("flash", "flash-sm80", "sdpa-cudnn", "sdpa-flash", "flash-attn-3", "flash-attn-4")

SUITES: dict[str, Suite] = {
    "grid": _suite(
        "head_dim 64, 128, 256 x 512 to 16384 rows x causal or not", dims=(64, 128, 256), rows=LENGTHS
    ),
    "short": _suite("short sequences", dims=(64, 128, 256), rows=(128, 256, 512), providers=FAST),
    "gqa": _suite(
        "64 query heads on 8 key heads, compared with 64 on 64 of the same flops",
        rows=(2048, 8192),
        batch=2,
        heads=((64, 64), (64, 8)),
        providers=FAST,
    ),
    "odd": _suite(
        "lengths that no tile divides, with the nearest that one does (40 heads, batch 1)",
        rows=(2048, 2100, 7680, 7800),
        batch=1,
        heads=((40, 40),),
        providers=FAST,
    ),
    "varlen": _suite(
        "packed sequences of variable length that are equally long, with the same as a batch",
        dims=(64, 128),
        rows=(1024, 4096),
        providers=("flash", "flash-varlen", "torch-varlen", "sdpa-flash"),
    ),
    "deterministic": _suite(
        "gradients with the same bits in every run",
        dims=(64, 128, 256),
        rows=(2048, 8192),
        directions=("backward",),
        providers=(
            "flash",
            "flash-deterministic",
            "sdpa-cudnn",
            "sdpa-cudnn-deterministic",
            "sdpa-flash-deterministic",
            "flash-attn-4",
            "flash-attn-4-deterministic",
        ),
    ),
    "dims": _suite(
        "head dims between those of the grid",
        dims=(80, 96, 160, 192),
        rows=(512, 1024, 4096, 16384),
        providers=("flash", "sdpa-cudnn"),
    ),
    "values": _suite(
        "q and k of head_dim 192, v of 128",
        dims=(192,),
        dim_v=128,
        rows=(512, 1024, 4096, 16384),
        heads=((16, 16),),
        providers=("flash", "sdpa-cudnn"),
    ),
    "portable": _suite(
        "the sm_80 path against FlashAttention-2 (run with PROFILING_LAB_ATTENTION_PATH=sm80)",
        dims=(64, 128, 256),
        rows=(1024, 4096, 16384),
        providers=("flash-sm80", "sdpa-flash"),
    ),
    "flex": _suite(
        "FlexAttention, which compiles for each problem",
        dims=(64, 128, 256),
        rows=(8192,),
        providers=("flash", "flex-attention", "sdpa-cudnn"),
    ),
    "ladder": _suite(
        "the rungs that lead to flash_attention",
        dims=(64, 128),
        rows=(1024, 2048),
        directions=("forward",),
        heads=((8, 8),),
        providers=("naive", "tiled", "ladder-flash", "eager", "flash", "sdpa-cudnn"),
    ),
    "cpu": _suite(
        "the CPU path against torch's",
        dims=(64, 128),
        rows=(512, 1024, 2048),
        batch=1,
        heads=((8, 8),),
        dtypes=("float32", "bfloat16"),
        providers=("flash", "sdpa-math", "sdpa-flash"),
        device="cpu",
    ),
}
