# SPDX-License-Identifier: Apache-2.0
"""One seeded program under three recorders: ours and then Kineto in one process, nsys in another.

Kernels are compared in the order in which they were launched: name, grid, block, stream, the call that
launched them (found by correlation id), and how long they took. Two processes differ in where their tensors
lie, which moves kernels of some microseconds by more than a per cent; one process does not.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import statistics
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from recorder.runner import Runner

pytestmark = pytest.mark.gpu

# Work of all kinds and sizes, on two streams. The first step loads modules and chooses algorithms; the rest
# of the warm-up brings the clocks to where they stay.
PROGRAM = """
torch.manual_seed(0)
model = torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True).cuda()
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(16, 128, 512, device="cuda")
a, b = torch.randn(4096, 4096, device="cuda"), torch.randn(1 << 26, device="cuda")
side = torch.cuda.Stream()
def step():
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    a @ a
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side): b.sin()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
def steps(count):
    for _ in range(count): step()
steps(100)
"""
STEPS = 20
# A kernel of some microseconds differs by more between two intervals of one process, whoever records them.
LONG_NS, RELATIVE = 50_000, 0.01


class Kernel(NamedTuple):
    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    stream: int
    """in the order of first use"""
    call: str
    ns: int


def in_order(rows: list[tuple[str, tuple[int, ...], tuple[int, ...], int, str, int]]) -> list[Kernel]:
    streams: dict[int, int] = {}
    return [
        Kernel(name, grid, block, streams.setdefault(stream, len(streams)), re.sub(r"_v\d+$", "", call), ns)
        for name, grid, block, stream, call, ns in rows
    ]


def from_sqlite(path: Path, name: str) -> list[Kernel]:
    """Ours and nsys' have one schema. nsys has an extra row of class 67 per call, for its native chain."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as file:
        rows = file.execute(
            "SELECT n.value, gridX, gridY, gridZ, blockX, blockY, blockZ, streamId, c.value, k.end - k.start"
            f" FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds n ON n.id = COALESCE(k.{name}, k.shortName)"
            " JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId"
            " AND r.eventClass IN (0, 1) JOIN StringIds c ON c.id = r.nameId ORDER BY r.start"
        ).fetchall()
    return in_order([(r[0], r[1:4], r[4:7], *r[7:]) for r in rows])


def from_kineto(path: Path) -> list[Kernel]:
    events = json.loads(path.read_text())["traceEvents"]
    calls = {e["args"]["correlation"]: e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")}
    rows = []
    for e in events:
        if e.get("cat") == "kernel":
            args, call = e["args"], calls[e["args"]["correlation"]]
            shape = (tuple(args["grid"]), tuple(args["block"]))
            facts = (e["name"], *shape, args["stream"], call["name"], round(e["dur"] * 1000))
            rows.append((call["ts"], facts))
    return in_order([row for _, row in sorted(rows, key=lambda pair: pair[0])])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exactness")


@pytest.fixture(scope="module")
def ours(folder: Path) -> Path:
    """The folder gets two of ours, and then Kineto's, which keeps CUPTI."""
    Runner(folder, "import torch", {})(f"""
{PROGRAM}
for path in ("again.sqlite", OUT):
    with profiling_lab.record(path) as recorder: steps({STEPS})
    assert recorder.summary.reasons == {{}} and recorder.summary.dropped == 0, recorder.summary
from torch.profiler import profile, ProfilerActivity
for _ in range(2):  # the first prepares itself
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof: steps({STEPS})
prof.export_chrome_trace("kineto.json")
""")
    return folder / "out.sqlite"


@pytest.fixture(scope="module")
def kineto(folder: Path, ours: Path) -> list[Kernel]:
    return from_kineto(folder / "kineto.json")


@pytest.fixture(scope="module")
def nsys(folder: Path) -> list[Kernel]:
    if shutil.which("nsys") is None:
        pytest.skip("nsys is not installed")
    report = str(folder / "nsys.nsys-rep")
    options = ("--trace=cuda", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true")
    part = ("--capture-range=cudaProfilerApi", "--capture-range-end=stop")
    Runner(folder, "import torch", {})(
        f"{PROGRAM}\ntorch.cuda.profiler.start(); steps({STEPS}); torch.cuda.profiler.stop()\n",
        under=("nsys", "profile", *options, *part, "-o", report),
    )
    subprocess.run(
        ["nsys", "export", "--type=sqlite", "--force-overwrite=true", "-o", folder / "nsys.sqlite", report],
        check=True,
        capture_output=True,
    )
    return from_sqlite(folder / "nsys.sqlite", "mangledName")


# Kineto demangles as we do, nsys in a way of its own.
PEERS = pytest.mark.parametrize(("peer", "name"), [("kineto", "demangledName"), ("nsys", "mangledName")])


@PEERS
def test_the_same_kernels_from_the_same_calls(
    ours: Path, peer: str, name: str, request: pytest.FixtureRequest
) -> None:
    kernels, theirs = from_sqlite(ours, name), request.getfixturevalue(peer)
    assert len(kernels) == len(theirs) and len(kernels) % STEPS == 0 and len(kernels) > 40 * STEPS
    for mine, its in zip(kernels, theirs, strict=True):
        assert mine[:-1] == its[:-1]


class Apart(NamedTuple):
    """What two recordings of a program differ by, relatively: medians per kernel of a step."""

    total: float
    longest: float
    """the worst of the kernels above LONG_NS"""
    half: float
    """the median of all kernels"""


def compared(what: str, kernels: list[Kernel], theirs: list[Kernel]) -> Apart:
    per_step = len(kernels) // STEPS
    pairs: list[list[tuple[int, int]]] = [[] for _ in range(per_step)]
    for place, (mine, its) in enumerate(zip(kernels, theirs, strict=True)):
        pairs[place % per_step].append((mine.ns, its.ns))
    medians = [
        (statistics.median(mine for mine, _ in pair), statistics.median(its for _, its in pair))
        for pair in pairs
    ]
    total, their_total = (sum(column) for column in zip(*medians, strict=True))
    apart = [abs(mine - its) / its for mine, its in medians]
    long = [apart[i] for i, (_, its) in enumerate(medians) if its > LONG_NS]
    print(
        f"{what}: {per_step} kernels of a step take {total / 1000:.1f} us, "
        f"{100 * (total / their_total - 1):+.2f} %; {len(long)} above {LONG_NS // 1000} us differ by at most "
        f"{100 * max(long):.2f} %; of all half by {100 * statistics.median(apart):.2f} %, "
        f"{sum(a > RELATIVE for a in apart)} by more than 1 %, the worst by {100 * max(apart):.2f} %, "
        f"{max(abs(mine - its) for mine, its in medians):.0f} ns"
    )
    return Apart(abs(total / their_total - 1), max(long), statistics.median(apart))


@PEERS
def test_durations_agree(
    ours: Path, folder: Path, peer: str, name: str, request: pytest.FixtureRequest
) -> None:
    """Within 1 %; on a GPU that others use at the same time, within what two recordings of ours differ by."""
    kernels = from_sqlite(ours, name)
    control = compared("ours, twice", kernels, from_sqlite(folder / "again.sqlite", name))
    found = compared(peer, kernels, request.getfixturevalue(peer))
    for mine, noise in zip(found, control, strict=True):
        assert mine <= max(RELATIVE, 3 * noise), (found, control)
