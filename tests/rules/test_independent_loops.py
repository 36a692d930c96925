# SPDX-License-Identifier: Apache-2.0
"""Loops that do one item after another, where all could be one batch."""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules.tiny_kernels import RULE

AT = "/app/tag.py:{} {}"
MODULE = "/site-packages/torch/nn/modules/module.py:1776 _call_impl"
CONTAINER = "/site-packages/torch/nn/modules/container.py:240 Sequential.forward"


def stack(*frames: tuple[int, str]) -> str:
    return " > ".join(AT.format(line, function) for line, function in frames)


def program(
    text: str,
    items: int = 16,
    layers: int = 4,
    *,
    others: tuple[tuple[int, str], ...] = (),
    between: int = 0,
    through: str = "",
    blocks: int = 1,
    waits: int = 0,
) -> TraceBuilder:
    """Steps in which line 20, of this text, calls a function for each item. between: a line of its loop that
    launches something, too. through: a library in which the call goes on. waits: in how many of the passes
    the host waits.
    """
    builder = TraceBuilder().row("TARGET_INFO_GPU", vmId=0, id=0, name="GPU", smCount=132)
    for step in range(4):
        began_ns = builder.now_ns
        for item in range(items):
            call = stack((3, "main"), (20, "tag")) + through
            builder.launch("embed", 2_000, stack=f"{call} > {AT.format(8, 'Net.forward')}", blocks=blocks)
            for _ in range(layers):
                builder.launch("mul", 2_000, stack=f"{call} > {AT.format(9, 'Net.forward')}", blocks=blocks)
            if item < waits:
                builder.call(
                    "cudaStreamSynchronize_v3020", call_ns=1_000, stack=stack((3, "main"), (20, "tag"))
                )
            if between:
                builder.launch("other", 20_000, stack=stack((3, "main"), (between, "tag")))
        builder.launch("loss", 50_000, stack=stack((3, "main")))
        builder.range(f"ProfilerStep#{step}", began_ns, builder.now_ns)
    for line, each in ((20, text), *others):
        builder.source("/app/tag.py", line, each)
    return builder


def line_of(judge: Judge, builder: TraceBuilder) -> int:
    (finding,) = judge(RULE, builder)
    assert ("for one item at a time" in finding.what) is (finding.place.line == 20)
    assert finding.remedy.startswith("do it for all items at once") is (finding.place.line == 20)
    return int(finding.place.line)


@pytest.mark.parametrize(
    "text",
    [
        "scores = torch.cat([self.net(photo[None]) for photo in photos])",
        "return torch.stack(list(self.net(photo) for photo in photos))",
        "scores = {name: self.net(photo) for name, photo in photos.items()}",
    ],
)
def test_passes_of_a_comprehension_are_one_batch(judge: Judge, text: str) -> None:
    assert line_of(judge, program(text)) == 20


def test_few_passes_are_no_loop(judge: Judge) -> None:
    assert line_of(judge, program("s = [self.net(one) for one in photos]", items=7)) == 9
    assert line_of(judge, program("s = [self.net(one) for one in photos]", items=8)) == 20


@pytest.mark.parametrize(
    "text",
    [
        "x = self.net(photo)",
        "scores = [net(photo) for net in self.nets]",  # each with weights of its own
        "scores = [net.forward(photo) for net in self.nets]",
        "scores = self.net([one for one in photos])",
        "scores = [self.net(photos) for _ in range(16)]",  # nothing of its own: no items
        "",
    ],
)
def test_other_calls_are_no_batch(judge: Judge, text: str) -> None:
    assert line_of(judge, program(text)) == 9


@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("scores.append(self.net(photo))", ()),
        ("scores[name] = self.net(photo)", ()),
        ("total += self.net(photo)", ()),
        ("loss = self.net(photo) / 16", ((21, "loss.backward()"),)),
        ("loss = self.net(photo) / 16", ((21, "self.scaler.scale(loss).backward()"),)),
    ],
)
def test_what_is_collected_is_one_batch(judge: Judge, text: str, others: tuple[tuple[int, str], ...]) -> None:
    """Where other lines of the loop launch something between the passes, which shows that it is the loop."""
    first = others or ((21, "other = photo.sum()"),)
    assert line_of(judge, program(text, between=21, others=first)) == 20
    assert line_of(judge, program(text, others=first)) == 9, (
        "it may be passed once a step, with a loop inside"
    )


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("states.append(self.net(states[-1]))", "other = photo.sum()"),
        ("out[i] = self.net(out[i - 1])", "other = photo.sum()"),
        ("total += self.net(total)", "other = photo.sum()"),
        ("states.append(self.net(state))", "state = self.next(state)"),
        ("x = self.net(x)", "x.mean().backward()"),
    ],
)
def test_a_pass_that_needs_the_one_before_is_no_batch(judge: Judge, text: str, other: str) -> None:
    assert line_of(judge, program(text, between=21, others=((21, other),))) == 9


def test_layers_that_a_library_goes_through_are_no_items(judge: Judge) -> None:
    text = "scores = [self.net(photo) for photo in photos]"
    assert line_of(judge, program(text, through=f" > {MODULE}")) == 20, "a module that is called"
    assert line_of(judge, program(text, through=f" > {MODULE} > {CONTAINER} > {MODULE}")) == 9


@pytest.mark.parametrize(("blocks", "gpu"), [(1, 1 / 16), (66, 0.5), (500, 1.0)])
def test_a_batch_launches_once_and_fills_the_gpu(judge: Judge, blocks: int, gpu: float) -> None:
    builder = program("s = [self.net(one) for one in photos]", blocks=blocks)
    (finding,) = judge(RULE, builder)
    assert finding.saving is not None and len(finding.saving.operations) == 4 * 16 * 5
    assert set(finding.saving.launches_left) == {1 / 16}
    assert finding.saving.left == pytest.approx(gpu)


def test_waits_in_each_pass_are_a_cause_of_their_own(judge: Judge) -> None:
    text = "wrong = [bool(self.net(one)) for one in photos]"
    assert line_of(judge, program(text, waits=15)) == 20
    (finding,) = judge(RULE, program(text, waits=16))
    assert "for one item at a time" not in finding.what
