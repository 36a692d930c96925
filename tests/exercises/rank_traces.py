# SPDX-License-Identifier: Apache-2.0
"""Recordings of the exercises on several GPUs, made on a simulated cluster: the real lines of their programs, times
chosen here. They stand in for recordings of GPUs in tests, and are never shipped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from exercises.clinic_traces import line_of
from made_traces.cluster import COMMUNICATION, COMPUTE, Cluster, Conditions, Rank

from profiling_lab.exercises import find

MIB = 1 << 20
NS_PER_MIB = 3_300
"""of an all-reduce between two GPUs, about 300 GB/s"""
STEPS = 7
Program = Callable[[Rank], None]


def lines_in(slug: str, file: str) -> Callable[[str], str]:
    """The place of a text in a program of the exercise, as the cluster names it."""
    path = find(slug).folder / file
    return lambda text: f"{file}:{line_of(slug, text, path)}"


def reduced(rank: Rank, mib: float, line: str = "train.py:1") -> None:
    """Autograd's thread gives a bucket of DDP to NCCL."""
    rank.wait(line, COMMUNICATION, COMPUTE)
    rank.collective(line, "AllReduce_Sum_f32_RING_LL", round(mib * NS_PER_MIB), members=rank.cluster.ranks,
                    thread=2, message_bytes=round(mib * MIB))  # fmt: skip


def ddp_training(one_bucket: bool) -> Program:
    """E04: blocks of few and of many weights; the latter come first in backward."""
    at = lines_in("multi-gpu-timeline", "ddp_training.py")
    up, down = at("hidden = F.relu("), at("return x + self.down(")
    wrapped, optimizer = at("DistributedDataParallel(model"), at("job.optimizer.step()")
    blocks = (32.0, 32.0, 128.0, 128.0, 128.0, 128.0)

    def step(rank: Rank) -> None:
        if rank.step == 0:
            rank.collective(wrapped, "Broadcast_RING_LL", 900_000, members=rank.cluster.ranks,
                            message_bytes=round(sum(blocks) * MIB))  # fmt: skip
            rank.wait(wrapped, COMPUTE, COMMUNICATION)
        for number in range(len(blocks)):
            rank.kernel(up, "layer_norm_kernel", 20_000, node=10 * number)
            rank.kernel(up, "nvjet_hsh_gemm_up", 130_000, node=10 * number + 1)
            rank.kernel(up, "relu_kernel", 25_000, node=10 * number + 2)
            rank.kernel(down, "nvjet_hsh_gemm_down", 130_000, node=10 * number + 3)
        for number in reversed(range(len(blocks))):
            rank.backward(down, "nvjet_hsh_gemm_down_bwd", 260_000, 10 * number + 3)
            rank.backward(up, "relu_bwd_kernel", 40_000, 10 * number + 2)
            rank.backward(up, "nvjet_hsh_gemm_up_bwd", 260_000, 10 * number + 1)
            rank.backward(up, "layer_norm_bwd_kernel", 40_000, 10 * number)
            if not one_bucket:
                for _ in range(2):
                    reduced(rank, blocks[number] / 2)
        if one_bucket:
            reduced(rank, sum(blocks))
        rank.wait("train.py:1", COMPUTE, COMMUNICATION)
        for _ in range(3):
            rank.kernel(optimizer, "multi_tensor_apply_kernel", 250_000)

    return step


def made(program: Program, folder: Path, caller: str, samples: bool = False) -> Path:
    """The recordings of two ranks in this folder."""
    cluster = Cluster(2, program, Conditions(), samples=samples, caller=caller)
    cluster.run(STEPS).write(folder)
    return folder


def made_ddp_training(folder: Path, solved: bool = False) -> Path:
    """Of E04's program as it is, or of the solution."""
    at = lines_in("multi-gpu-timeline", "ddp_training.py")
    return made(ddp_training(not solved), folder, f"/app/{at('loss = F.cross_entropy(')} train")
