# SPDX-License-Identifier: Apache-2.0
"""Made recordings of the clinic's starters: the real lines of their files, times and counts chosen here, and
with each the answers that follow from them by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from builders import TraceBuilder

from profiling_lab.exercises import find

PAGEABLE, PINNED = 0, 1
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}<float>>(int)"
COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(float)>(int)"
MS, US = 1_000_000, 1_000


@dataclass(frozen=True)
class Made:
    """How one starter's recording looks, and what a learner reads from it."""

    fill: Callable[[TraceBuilder, Callable[..., str]], None]
    line: str
    """text of the line to blame"""
    behind: str
    size: float
    timeline: dict[str, float] = field(default_factory=dict)
    """the answers for [timeline]"""


def transfers(builder: TraceBuilder, at: Callable[..., str]) -> None:
    for _ in range(3):
        pageable = {"source": PAGEABLE, "target": 2, "call_ns": 5 * MS}
        builder.copy("HtoD", 5 * MS, stack=at("x = x.to(", "train"), size_bytes=50_000_000, **pageable)
        builder.launch("sgemm", 1 * MS, stack=at("loss = F.cross_entropy(", "train"))


def small_kernels(builder: TraceBuilder, at: Callable[..., str]) -> None:
    for _ in range(100):
        where = at("part = part * scale", "GroupedScale.forward")
        builder.launch(ELEMENTWISE.format("MulFunctor"), 2 * US, stack=where)
    for _ in range(20):
        where = at("part = F.relu(part)", "GroupedScale.forward")
        builder.launch(ELEMENTWISE.format("ClampFunctor"), 2 * US, stack=where)
    for _ in range(10):
        builder.launch("sgemm", 20 * US, stack=at("y = layer(x)", "Network.forward"))


def passes(builder: TraceBuilder, at: Callable[..., str]) -> None:
    for _ in range(2):
        builder.launch("sgemm", 1 * MS, stack=at("y = self.up(x)", "Block.forward"))
        for _ in range(3):
            where = at("return 0.5 * h", "norm_gelu")
            builder.launch(ELEMENTWISE.format("MulFunctor"), 1 * MS, stack=where)
        builder.launch(ELEMENTWISE.format("AddFunctor"), 1 * MS, stack=at("h = centred *", "norm_gelu"))


def reads(builder: TraceBuilder, at: Callable[..., str]) -> None:
    for _ in range(40):
        where = at("if guess == label", "hits")
        builder.launch(ELEMENTWISE.format("CompareEqFunctor"), 2 * US, stack=where)
        builder.copy("DtoH", 1 * US, stack=where, size_bytes=1, source=2, target=PAGEABLE)
        builder.call("cudaStreamSynchronize_v3020", stack=where, call_ns=8 * US)
        builder.gap(20 * US)
    builder.launch("sgemm", 50 * US, stack=at("logits = job.model", "train"))


def layouts(builder: TraceBuilder, at: Callable[..., str]) -> None:
    for _ in range(2):
        builder.launch(COPY, 3 * MS, stack=at("return y.transpose(1, 2)", "channel_norm"))
        builder.launch(COPY, 1 * MS, stack=at("y = norm(x.tr", "channel_norm"))
        builder.launch(
            "vectorized_layer_norm_kernel<float>", 1 * MS, stack=at("y = norm(x.tr", "channel_norm")
        )
        builder.launch(ELEMENTWISE.format("GeluFunctor"), 1 * MS, stack=at("y = F.gelu(", "Block.forward"))


def unfolded(builder: TraceBuilder, at: Callable[..., str]) -> None:
    for _ in range(60):
        where = at("y = self.conv(x)", "Block.forward")
        builder.launch("void at::native::im2col_kernel<float>(long)", 50 * US, stack=where)
        builder.launch("sgemm", 100 * US, stack=where)
    where = at("return x + F.relu(y)", "Block.forward")
    builder.launch(ELEMENTWISE.format("ClampFunctor"), 1 * MS, stack=where)


def host_work(builder: TraceBuilder, at: Callable[..., str]) -> None:
    """Five steps of 1 ms of kernels, a wait, 5 ms of the host alone before each of two copies."""
    log = at("sizes.append(", "weight_sizes")
    for step in range(5):
        begin = builder.now_ns
        builder.launch("sgemm", 1 * MS, stack=at("loss = F.cross_entropy(", "train"))
        builder.call(
            "cudaDeviceSynchronize_v3020", stack=at("torch.cuda.synchronize()", "finish"), call_ns=1 * MS
        )
        builder.gap(1 * MS)
        for _ in range(2):
            builder.gap(5 * MS)
            builder.copy(
                "DtoH", 500 * US, stack=log, size_bytes=4_000_000, source=2, target=PAGEABLE, call_ns=500 * US
            )
            builder.gap(500 * US)
        builder.range(f"step {step}", begin, builder.now_ns)


def one_stream(builder: TraceBuilder, at: Callable[..., str]) -> None:
    for _ in range(10):
        copied = at("x = signal.to(", "Classifier.forward")
        builder.copy("HtoD", 100 * US, stack=copied, size_bytes=4_000_000, source=PINNED, target=2)
        builder.launch(
            ELEMENTWISE.format("MulFunctor"), 10 * US, blocks=1024, stack=at("x = x * gain", "Tower.forward")
        )
        builder.launch(
            "layer_norm_kernel", 380 * US, blocks=4, stack=at("x = F.layer_norm(", "Tower.forward")
        )
        builder.launch(
            ELEMENTWISE.format("GeluFunctor"),
            10 * US,
            blocks=1024,
            stack=at("x = F.gelu(x)", "Tower.forward"),
        )


def both_ways(builder: TraceBuilder, at: Callable[..., str]) -> None:
    size = {"size_bytes": 8 << 20}
    for _ in range(5):
        builder.launch("sgemm", 1 * MS, stack=at("x = F.gelu(layer(x))", "Network.forward"))
        builder.copy(
            "DtoH",
            6 * MS,
            stack=at("return tensor.cpu()", "Offload.keep"),
            source=2,
            target=PAGEABLE,
            call_ns=8 * MS,
            **size,
        )
        builder.gap(8 * MS)
        builder.copy(
            "HtoD",
            1 * MS,
            stack=at("return kept.to(", "Offload.fetch"),
            source=PAGEABLE,
            target=2,
            call_ns=2 * MS,
            **size,
        )
        builder.gap(2 * MS)


MADE = {
    "timeline-basics": Made(
        host_work, "sizes.append(", "host code", 5.0, {"idle": 83.4, "compute_ms": 1.0, "device_waits": 5}
    ),
    "kernel-overlap": Made(
        one_stream,
        "x = F.layer_norm(",
        "layer_norm_kernel",
        76.0,
        {"blocks": 4, "at_once": 1.0, "copies_alone_ms": 1.0},
    ),
    "memory-timeline": Made(
        both_ways,
        "return tensor.cpu()",
        "pageable",
        75.0,
        {"to_host_mib": 40.0, "to_host_gb_s": 1.049, "to_device_gb_s": 4.194},
    ),
    "host-to-device": Made(transfers, "x = x.to(", "pageable", 83.3),
    "many-small-kernels": Made(small_kernels, "part = part * scale", "MulFunctor", 100),
    "memory-bandwidth": Made(passes, "return 0.5 * h", "vectorized_elementwise_kernel<MulFunctor>", 60.0),
    "hidden-synchronisation": Made(reads, "if guess == label", "cudaStreamSynchronize", 40),
    "memory-layout": Made(layouts, "return y.transpose(1, 2)", "direct_copy_kernel_cuda", 50.0),
    "slow-convolutions": Made(unfolded, "y = self.conv(x)", "im2col", 90.0),
}


def line_of(slug: str, text: str, file: Path | None = None) -> int:
    """The line of that text in the starter: tests keep working when the file changes."""
    path = file or find(slug).folder / "train.py"
    found = [i for i, line in enumerate(path.read_text().splitlines(), 1) if text in line]
    assert len(found) == 1, f"{text!r} stands {len(found)} times in {path.name} of {slug}"
    return found[0]


def made_trace(slug: str, path: Path, shift: int = 0) -> Path:
    """Write the recording. `shift` moves every line: a recording of an edited program."""
    builder = TraceBuilder()

    def at(text: str, function: str) -> str:
        return f"/home/learner/train.py:{line_of(slug, text) + shift} {function}"

    MADE[slug].fill(builder, at)
    builder.row("TARGET_INFO_GPU", vmId=0, id=0, name="Test GPU")
    return builder.write(path)


def answers_to(slug: str) -> dict[str, object]:
    """What a learner reads from the made recording."""
    made = MADE[slug]
    return {
        "exercise": slug,
        "trace": "run.sqlite",
        "finding.file": "train.py",
        "finding.line": line_of(slug, made.line),
        "finding.behind": made.behind,
        "finding.size": made.size,
        "fix.cause": "I saw it",
        "fix.change": "I changed it",
        **{f"timeline.{key}": value for key, value in made.timeline.items()},
    }
