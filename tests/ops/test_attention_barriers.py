# SPDX-License-Identifier: Apache-2.0
"""No schedule of the Hopper forward's warps stops: its barriers, simulated, for all its tiles."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from attention_barriers import Config, Stopped, Unit, causal_tile

SM90 = Path(__file__).resolve().parents[2] / "csrc" / "ops" / "attention" / "sm90"
LENGTHS = (5, 64, 130, 400, 512, 700, 1024)

# The kernels of fwd_d*.cu: (head_dim, rows, keys, taking turns, units, stages) -> buffers for Q.
KERNELS = {
    (64, 192, 128, False, 1, 2): 3,
    (64, 128, 64, False, 2, 4): 3,
    (128, 128, 128, True, 1, 2): 3,
    (256, 128, 64, False, 1, 2): 1,
}


def run(config: Config, seed: int) -> None:
    choose = random.Random(seed)
    length = choose.choice(LENGTHS)
    numbers = [choose.randrange(100) for _ in range(10)]
    Unit(config, [causal_tile(config, length, number) for number in numbers], seed).run()


@pytest.mark.parametrize("counts", [False, True], ids=["dealt", "counted"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: f"d{kernel[0]}-{kernel[1]}x{kernel[2]}")
def test_no_schedule_stops(kernel: tuple[int, int, int, bool, int, int], counts: bool) -> None:
    _, rows, keys, turns, _, stages = kernel
    config = Config(rows, keys, stages=stages, stages_q=KERNELS[kernel], turns=turns, counts=counts)
    for seed in range(40):
        run(config, seed)


def test_one_arrival_for_a_warpgroup_stops() -> None:
    """What the forward once did: where a group passes over a tile, nothing holds its four warps together."""
    stopped = 0
    for seed in range(40):
        try:
            run(Config(192, 128, stages_q=2, counts=False, arrivals=1), seed)
        except (Stopped, AssertionError):
            stopped += 1
    assert stopped > 10


def test_these_are_the_kernels() -> None:
    found = set()
    for path in SM90.glob("fwd_d*.cu"):
        for text in re.findall(r"plan_fwd_element<([^>]*)>", path.read_text()):
            values = [value.strip() for value in text.split(",")]
            dim, rows, keys, turns, units, stages = [*values, "1", "2"][:6] if len(values) == 4 else values
            found.add((int(dim), int(rows), int(keys), turns == "true", int(units), int(stages)))
    assert found == set(KERNELS)
