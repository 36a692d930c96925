# SPDX-License-Identifier: Apache-2.0
"""What E15 and E16 measure, made by the simulated cluster: files as their programs write them, with times and
lines known here. Not a recording of a GPU: what a GPU gave lies in the folders of the exercises.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from made_traces.cluster import COMMUNICATION, COMPUTE, Cluster, Conditions, Rank

from profiling_lab.analysis.collectives.links import Links, LinkTime, save
from profiling_lab.analysis.ranks.kinds import bus_bytes
from profiling_lab.exercises import find

GPU = "NVIDIA H100"
BLOCKS = 4
KERNELS = 3
"""of a block or layer: a thread that mostly runs backward is known as autograd's"""
REDUCE = "AllReduce_Sum_f32_RING_LL"
LATENCY_NS, BUS_BYTES_PER_S = 20_000, 350_000_000_000
CHANNELS = 24
NCCL = (
    "NCCL version 2.28.9+cuda13.0",
    "NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels",
)


def line_of(slug: str, text: str, file: str = "train.py") -> int:
    """The number of the one line of an exercise's program with this text."""
    lines = (find(slug).folder / file).read_text().splitlines()
    (found,) = (number for number, line in enumerate(lines, 1) if text in line)
    return found


def at(slug: str, text: str) -> str:
    return f"train.py:{line_of(slug, text)}"


def written(cluster: Cluster, folder: Path, name: str) -> list[str]:
    """The recordings of a job, as its JSON names them; those of the same name before are gone."""
    shutil.rmtree(folder / f"{name}_files", ignore_errors=True)
    return [str(Path(path).relative_to(folder)) for path in cluster.write(folder / f"{name}_files")]


# E15: rows of a rank take time, the norms of all weights take time, the optimizer does.

STRONG_NS, NORMS_NS, OPTIMIZER_NS, REDUCED_NS = 24_000_000, 14_000_000, 400_000, 120_000


def scaling_step(share: float, norms: Callable[[int, int], float]) -> Callable[[Rank], None]:
    """A step in which a rank has this share of the rows; norms: that of the norms, by rank and ranks."""
    slug = "multi-gpu-scaling"
    forward, norm = at(slug, "return x + self.down"), at(slug, "torch.baddbmm")
    step, backward = at(slug, "job.optimizer.step()"), at(slug, "loss.backward()")

    def program(rank: Rank) -> None:
        world = rank.cluster.ranks
        of_kernel = STRONG_NS * share / BLOCKS / KERNELS
        for node in range(BLOCKS * KERNELS):
            rank.kernel(forward, "gemm", of_kernel / 3, node=1 + node)
        for block in reversed(range(BLOCKS)):
            for node in reversed(range(KERNELS)):
                rank.backward(forward, "gemm_bwd", of_kernel * 2 / 3, 1 + KERNELS * block + node)
            if world > 1:
                rank.wait(backward, COMMUNICATION, COMPUTE)
                rank.collective(backward, REDUCE, REDUCED_NS, members=world, thread=2, message_bytes=33 << 20)
        if world > 1:
            rank.wait(backward, COMPUTE, COMMUNICATION)
        rank.kernel(step, "multi_tensor_apply", OPTIMIZER_NS)
        part = norms(rank.number, world)
        for _ in range(20 if part else 0):
            rank.kernel(norm, "batched_gemm", NORMS_NS * part / 20)

    return program


def on_first_rank(rank: int, ranks: int) -> float:
    """As the starter does it."""
    return 1.0 if rank == 0 else 0.0


def divided(rank: int, ranks: int) -> float:
    """As the solution does it."""
    return 1 / ranks


def repeated(rank: int, ranks: int) -> float:
    """On every rank the same."""
    return 1.0


def made_scaling(
    folder: Path,
    name: str = "scaling",
    norms: Callable[[int, int], float] = on_first_rank,
    counts: tuple[int, ...] = (1, 2),
) -> Path:
    """scaling.json, with the recordings that it names."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = []
    for scaling in ("strong", "weak"):
        for count in counts:
            share = 1 / count if scaling == "strong" else 1.0
            cluster = Cluster(count, scaling_step(share, norms)).run(7)
            middle = cluster.step_ns / 1e6
            rows = 32768 if scaling == "strong" else 32768 * count
            times = [round(middle * (1 + 0.002 * (i % 5 - 2)), 5) for i in range(11)]
            runs.append({"scaling": scaling, "gpus": count, "rows": rows, "step_ms": times})
            if scaling == "strong" and count == counts[-1]:
                files = written(cluster, folder, name)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"gpu": GPU, "runs": runs, "recordings": files}))
    return path


# E16: layers of one width, reduced in one bucket or in several.

LAYERS, LAYER_BYTES = 12, 64 << 20
LAYER_NS, PLAIN_NS = 220_000, 750_000


@dataclass(frozen=True)
class Buckets:
    """How the gradients are reduced."""

    layers: int
    """in a bucket"""
    link_factor: float = 1.0
    late_ns: int = 0
    """by which rank 1 is late"""


def transfer_ns(size_bytes: int, ranks: int = 2) -> int:
    return round(LATENCY_NS + bus_bytes("AllReduce", size_bytes, ranks) * 1e9 / BUS_BYTES_PER_S)


def communicating_step(buckets: Buckets) -> Callable[[Rank], None]:
    """While a bucket is reduced behind backward, NCCL's blocks hold some SMs and kernels are slower."""
    slug = "communication-overhead"
    forward, backward = at(slug, "x = F.relu(layer(x))"), at(slug, "loss.backward()")
    step = at(slug, "job.optimizer.step()")
    size = buckets.layers * LAYER_BYTES
    hides = buckets.layers < LAYERS
    hidden_ns = (LAYERS // buckets.layers - 1) * transfer_ns(size) if hides else 0
    slower = 1 + hidden_ns * CHANNELS / 132 / (2 * LAYER_NS * LAYERS)

    def program(rank: Rank) -> None:
        world = rank.cluster.ranks
        for node in range(LAYERS * KERNELS):
            rank.kernel(forward, "gemm", LAYER_NS / KERNELS, node=1 + node)
        if buckets.late_ns and rank.number == 1:
            rank.kernel(forward, "extra_gemm", buckets.late_ns)
        for layer in reversed(range(LAYERS)):
            for node in reversed(range(KERNELS)):
                rank.backward(
                    forward, "gemm_bwd", 2 * LAYER_NS * slower / KERNELS, 1 + KERNELS * layer + node
                )
            if layer % buckets.layers == 0:
                rank.wait(backward, COMMUNICATION, COMPUTE)
                rank.collective(
                    backward, REDUCE, transfer_ns(size, world), members=world, thread=2, message_bytes=size
                )
        rank.wait(backward, COMPUTE, COMMUNICATION)
        rank.kernel(step, "multi_tensor_apply", PLAIN_NS)

    return program


def made_links(path: Path, ranks: tuple[int, ...] = (2,)) -> Path:
    times = [
        LinkTime("AllReduce", count, 1024 << (2 * i), transfer_ns(1024 << (2 * i), count), 100, 10)
        for count in ranks
        for i in range(11)
    ]
    save(Links(GPU, "2026-11-24", "nccl 2.28.9", "580.1", "2.11", "NV18", tuple(times)), path)
    return path


def made_communication(
    folder: Path, name: str = "communication", buckets: Buckets = Buckets(LAYERS), ranks: int = 2
) -> Path:
    """communication.json, with the links and recordings that it names."""
    folder.mkdir(parents=True, exist_ok=True)
    links = made_links(folder / "links.json", (ranks,))
    conditions = Conditions(link_factor=buckets.link_factor)
    cluster = Cluster(ranks, communicating_step(buckets), conditions).run(7)
    files = written(cluster, folder, name)
    size = buckets.layers * LAYER_BYTES
    said = (
        f"NCCL INFO AllReduce: {size} Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..{CHANNELS - 1}}}"
    )
    path = folder / f"{name}.json"
    data = {"gpu": GPU, "links": links.name, "recordings": files, "nccl": [*NCCL, said]}
    path.write_text(json.dumps(data))
    return path
