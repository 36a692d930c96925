# SPDX-License-Identifier: Apache-2.0
"""What is left of a loop's kernels in one batch, and of kernels that are only fused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from builders import TraceBuilder

from profiling_lab.rules.batched import batched
from profiling_lab.rules.view import View
from profiling_lab.trace import Trace

FUSED, STEPS, PASSES = 0.3, 3, 50
MAIN, LOOP = "/app/a.py:9 main", "/app/a.py:9 main > /app/a.py:20 update"
CALL = "/site-packages/torch/nn/modules/module.py:1790 Module._call_impl"
LAYER = f"{MAIN} > {CALL} > /app/a.py:30 Layer.forward"


def left(
    tmp_path: Path, step: Callable[[TraceBuilder], object], over_waits: bool = False, sms: int = 100
) -> dict[str, tuple[float, float]]:
    """By the kernel's name what is left of its time and of its launches, where only one line is batched."""
    builder = TraceBuilder().row("TARGET_INFO_GPU", vmId=0, id=0, name="GPU", smCount=sms)
    for number in range(STEPS):
        begin_ns = builder.now_ns
        step(builder)
        builder.launch("other", 1_000, stack=MAIN)
        builder.range(f"training_step {number}", begin_ns, builder.now_ns)
    path = tmp_path / "run.sqlite"
    path.unlink(missing_ok=True)
    with Trace.open(builder.write(path)) as trace:
        view = View(trace)
        rows = np.flatnonzero(~view.named("other"))
        saving = batched(view, rows, FUSED, 0.0, over_waits)
        names = [trace.operations.names[name] for name in trace.operations.name[saving.operations]]
    found: dict[str, set[tuple[float, float]]] = {}
    for name, *values in zip(names, saving.left.tolist(), saving.launches_left.tolist(), strict=True):
        found.setdefault(name, set()).add((values[0], values[1]))
    assert all(len(each) == 1 for each in found.values()), found
    return {name: min(each) for name, each in found.items()}


def loop(builder: TraceBuilder, wait: str = "", between: str = "") -> None:
    for _ in range(PASSES):
        builder.launch("mul", 2_000, stack=LOOP, blocks=25).launch("add", 2_000, stack=LOOP, blocks=400)
        builder.copy("DtoD", 1_000, stack=LOOP)
        if wait:
            builder.call(wait, stack=LOOP)
        if between:
            builder.launch(between, 2_000, stack=MAIN)


def test_a_batch_launches_each_kernel_once_and_takes_what_it_fills(tmp_path: Path) -> None:
    found = left(tmp_path, loop)
    once = FUSED / PASSES
    assert found["mul"] == pytest.approx((FUSED * 0.25, once)), "a quarter of the SMs"
    assert found["add"] == pytest.approx((FUSED, once)), "it fills them, so the batch takes as long"
    assert found["memcpy DtoD"] == pytest.approx((once, once))


def test_a_batch_takes_at_least_as_long_as_one(tmp_path: Path) -> None:
    assert left(tmp_path, loop, sms=10_000)["mul"] == pytest.approx((FUSED / PASSES, FUSED / PASSES))


def test_unknown_blocks_are_not_few(tmp_path: Path) -> None:
    def without(builder: TraceBuilder) -> None:
        for _ in range(PASSES):
            builder.launch("mul", 2_000, stack=LOOP)

    assert left(tmp_path, without)["mul"] == pytest.approx((FUSED, FUSED / PASSES))


def test_what_comes_in_between_ends_a_batch(tmp_path: Path) -> None:
    alone = (FUSED, FUSED)
    assert left(tmp_path, lambda b: loop(b, between="other"))["mul"] == alone, "other work"
    assert left(tmp_path, lambda b: loop(b, wait="cudaStreamSynchronize_v3020"))["mul"] == alone, "a wait"
    assert left(tmp_path, lambda b: loop(b, wait="cudaGetDevice_v3020"))["mul"] != alone
    over = left(tmp_path, lambda b: loop(b, wait="cudaStreamSynchronize_v3020"), over_waits=True)
    assert over["mul"][1] == pytest.approx(FUSED / PASSES), "waits that go with the loop"


def test_steps_are_no_batch(tmp_path: Path) -> None:
    def once(builder: TraceBuilder) -> None:
        builder.launch("mul", 2_000, stack=LOOP)

    builder = TraceBuilder()
    for number in range(STEPS):
        begin_ns = builder.now_ns
        once(builder)
        builder.range(f"training_step {number}", begin_ns, builder.now_ns)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        assert (batched(View(trace), np.arange(STEPS), FUSED, 0.0, False).launches_left == FUSED).all()


def test_without_steps_nothing_is_known_to_be_a_loop(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for _ in range(4):
        builder.launch("mul", 2_000, stack=LOOP)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        view = View(trace)
        assert view.steps is None
        found = batched(view, np.arange(4), FUSED, 0.0, False)
    assert (found.launches_left == FUSED).all()


def test_layers_are_no_loop(tmp_path: Path) -> None:
    """Each waits for the one before, and has weights of its own."""

    def layers(builder: TraceBuilder) -> None:
        for _ in range(24):
            for name in ("norm", "gelu", "norm"):
                builder.launch(name, 2_000, stack=LAYER, blocks=400)

    assert left(tmp_path, layers) == {"norm": (FUSED, FUSED), "gelu": (FUSED, FUSED)}


def test_what_comes_more_often_than_a_model_has_layers_is_a_loop(tmp_path: Path) -> None:
    """A table for each of 512 fields, looked up at one line of a module: no model has as many layers."""

    def fields(builder: TraceBuilder) -> None:
        for _ in range(512):
            builder.launch("embedding", 2_000, stack=LAYER, blocks=400)

    assert left(tmp_path, fields)["embedding"] == pytest.approx((FUSED, FUSED * 128 / 512))


def test_a_kernel_that_each_layer_launches_several_times_makes_no_loop(tmp_path: Path) -> None:
    def layers(builder: TraceBuilder) -> None:
        for _ in range(48):
            for name in ("cast", "norm", "cast", "up", "cast", "gelu", "cast", "down"):
                builder.launch(name, 2_000, stack=LAYER, blocks=400)

    assert left(tmp_path, layers)["cast"] == (FUSED, FUSED)


def test_a_loop_inside_of_layers_is_one_for_each_layer(tmp_path: Path) -> None:
    def layers(builder: TraceBuilder) -> None:
        for _ in range(4):
            builder.launch("norm", 2_000, stack=LAYER, blocks=400)
            for _ in range(16):
                builder.launch("head", 2_000, stack=LAYER.replace(":30", ":32"), blocks=400)

    found = left(tmp_path, layers)
    assert found["norm"] == (FUSED, FUSED) and found["head"] == pytest.approx((FUSED, FUSED / 16))


def test_waits_keep_their_part(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for number in range(STEPS):
        begin_ns = builder.now_ns
        loop(builder)
        builder.range(f"training_step {number}", begin_ns, builder.now_ns)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        view = View(trace)
        found = batched(view, np.arange(len(view.operations)), FUSED, 0.4, False)
    assert (found.launches_left == 0.4).all() and (found.left == 0.4).all()
