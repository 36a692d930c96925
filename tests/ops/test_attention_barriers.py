# SPDX-License-Identifier: Apache-2.0
"""No schedule of the Hopper kernels' warps stops: their barriers, simulated, for all tiles of the forward."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from attention_barriers import CachedUnit, Config, Stopped, Unit, WideBackward, causal_tile

SM90 = Path(__file__).resolve().parents[2] / "csrc" / "ops" / "attention" / "sm90"
LENGTHS = (5, 64, 130, 400, 512, 700, 1024)

# The kernels of fwd_d*.cu: (head_dim, rows, keys, taking turns, units, stages, v's head_dim) -> buffers for Q
Kernel = tuple[int, int, int, bool, int, int, int]
KERNELS: dict[Kernel, int] = {
    (64, 192, 128, False, 1, 2, 64): 3,
    (64, 128, 64, False, 2, 4, 64): 3,
    (80, 192, 112, False, 1, 2, 80): 2,
    (96, 192, 96, False, 1, 2, 96): 2,
    (96, 128, 128, True, 1, 2, 96): 3,
    (128, 128, 128, True, 1, 2, 128): 3,
    (192, 128, 64, True, 1, 2, 192): 2,
    (192, 128, 80, False, 1, 2, 192): 2,
    (192, 128, 128, False, 1, 2, 128): 1,
    (256, 128, 64, False, 1, 2, 256): 1,
}

# Those with keys in a cache (cache/fwd.cu) are the same, but for their producer warps.
CACHED_SHAPES = {(64, 192, 128, False), (128, 128, 128, True), (256, 128, 64, False)}
CACHED = {kernel for kernel in KERNELS if kernel[:4] in CACHED_SHAPES}


def run(config: Config, seed: int, kind: type[Unit] = Unit) -> None:
    choose = random.Random(seed)
    length = choose.choice(LENGTHS)
    numbers = [choose.randrange(100) for _ in range(10)]
    kind(config, [causal_tile(config, length, number) for number in numbers], seed).run()


@pytest.mark.parametrize("kernel", sorted(CACHED), ids=lambda k: f"d{k[0]}-{k[1]}x{k[2]}")
def test_no_schedule_stops_where_keys_are_in_a_cache(kernel: Kernel) -> None:
    _, rows, keys, turns, _, stages, _ = kernel
    for seed in range(60):
        run(Config(rows, keys, stages=stages, stages_q=KERNELS[kernel], turns=turns), seed, CachedUnit)


@pytest.mark.parametrize("counts", [False, True], ids=["dealt", "counted"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: f"d{k[0]}-d{k[6]}-{k[1]}x{k[2]}")
def test_no_schedule_stops(kernel: Kernel, counts: bool) -> None:
    _, rows, keys, turns, _, stages, _ = kernel
    config = Config(rows, keys, stages=stages, stages_q=KERNELS[kernel], turns=turns, counts=counts)
    for seed in range(40):
        run(config, seed)


@pytest.mark.parametrize(("stages", "ahead"), [(2, False), (3, True)])
def test_no_schedule_of_the_wide_backward_stops(stages: int, ahead: bool) -> None:
    for seed in range(60):
        WideBackward(stages, ahead, steps=seed % 12, seed=seed).run()


def test_a_wide_backward_ahead_with_one_stage_stops() -> None:
    """The next tile's queries would need the buffer of those that dK still has to be added for."""
    with pytest.raises(Stopped):
        WideBackward(1, True, steps=5, seed=0).run()


def test_one_arrival_for_a_warpgroup_stops() -> None:
    """What the forward once did: where a group passes over a tile, nothing holds its four warps together."""
    stopped = 0
    for seed in range(40):
        try:
            run(Config(192, 128, stages_q=2, counts=False, arrivals=1), seed)
        except (Stopped, AssertionError):
            stopped += 1
    assert stopped > 10


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: f"d{k[0]}-d{k[6]}-{k[1]}x{k[2]}")
def test_the_buffers_for_q_are_what_fits(kernel: Kernel) -> None:
    """As FwdConfig (fwd_config.cuh) computes them: at most three, in what the rings of K and V leave."""
    dim, rows, keys, _, units, stages, dim_v = kernel
    columns, columns_v = (-(-d // 64) * 64 for d in (dim, dim_v))
    left = 227 // units * 1024 - stages * keys * (columns + columns_v) * 2 - 1024
    assert KERNELS[kernel] == min(3, left // (rows * columns * 2))


def test_these_are_the_kernels() -> None:
    found = set()
    for path in SM90.glob("fwd_d*.cu"):
        for text in re.findall(r"plan_fwd_element<([^>]*)>", path.read_text()):
            values = [value.strip() for value in text.split(",")]
            dim, rows, keys, turns, units, stages, dim_v = [
                *values,
                *("1", "2", values[0])[len(values) - 4 :],
            ]
            found.add((int(dim), int(rows), int(keys), turns == "true", int(units), int(stages), int(dim_v)))
    assert found == set(KERNELS)
    text = (SM90 / "cache" / "fwd.cu").read_text()
    cached = re.findall(r"plan_fwd_element<(\d+), (\d+), (\d+), (true|false), 1, 2, \d+, true>", text)
    assert {(int(d), int(m), int(n), turns == "true") for d, m, n, turns in cached} == CACHED_SHAPES
