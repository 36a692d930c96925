# SPDX-License-Identifier: Apache-2.0
"""Recordings of the exercises on several GPUs, made on a simulated cluster: the real lines of their programs,
times chosen here. They stand in for recordings of GPUs in tests, and are never shipped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from exercises.clinic_traces import line_of
from job_builder import Job
from made_traces.cluster import COMMUNICATION, COMPUTE, Cluster, Rank

from profiling_lab.exercises import find

MIB = 1 << 20
NS_PER_MIB = 3_300
"""of an all-reduce between two GPUs, about 300 GB/s"""
STEPS = 7
Program = Callable[[Rank], None]


def lines_in(slug: str, file: str, shift: int = 0) -> Callable[[str], str]:
    """The place of a text in a program of the exercise, as the cluster names it. shift: by how many lines it
    has moved in an edited program.
    """
    path = find(slug).folder / file
    return lambda text: f"{file}:{line_of(slug, text, path) + shift}"


def reduced(rank: Rank, mib: float, line: str = "train.py:1") -> None:
    """Autograd's thread gives a bucket of DDP to NCCL."""
    rank.wait(line, COMMUNICATION, COMPUTE)
    rank.collective(line, "AllReduce_Sum_f32_RING_LL", round(mib * NS_PER_MIB), members=rank.cluster.ranks,
                    thread=2, message_bytes=round(mib * MIB))  # fmt: skip


def ddp_training(one_bucket: bool, shift: int) -> Program:
    """E04: blocks of few and of many weights; the latter come first in backward."""
    at = lines_in("multi-gpu-timeline", "ddp_training.py", shift)
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


BLOCK_MIB, SHARD_MIB = 128.0, 64.0
SORT_NS = 900_000
BOOKS_NS, POSTS_NS = 30_000_000, 250_000


def train_ddp(shared: bool, shift: int) -> Program:
    """E11: one rank sorts the weights of all layers after each step, or each rank those of a half."""
    at = lines_in("distributed-profiling", "train_ddp.py", shift)
    up, down, sort = at("hidden = F.relu("), at("return x + self.down("), at(".sort().values")
    optimizer = at("job.optimizer.step()")

    def step(rank: Rank) -> None:
        for block in range(4):
            rank.kernel(up, "nvjet_hsh_gemm_up", 350_000, node=10 * block)
            rank.kernel(up, "relu_kernel", 40_000, node=10 * block + 1)
            rank.kernel(down, "nvjet_hsh_gemm_down", 330_000, node=10 * block + 2)
        for block in reversed(range(4)):
            for _ in range(2):
                rank.backward(down, "nvjet_hsh_gemm_down_bwd", 330_000, 10 * block + 2)
            rank.backward(up, "relu_bwd_kernel", 60_000, 10 * block + 1)
            for _ in range(2):
                rank.backward(up, "nvjet_hsh_gemm_up_bwd", 340_000, 10 * block)
            reduced(rank, BLOCK_MIB)
        rank.wait("train.py:1", COMPUTE, COMMUNICATION)
        for _ in range(3):
            rank.kernel(optimizer, "multi_tensor_apply_kernel", 220_000)
        layers = range(rank.number, 8, 2) if shared else range(8 if rank.number == 0 else 0)
        for _ in layers:
            rank.kernel(sort, "abs_kernel", 30_000)
            rank.kernel(sort, "DeviceRadixSortOnesweepKernel", SORT_NS)

    return step


def train_fsdp(cropped: bool, shift: int) -> Program:
    """E11: the host of one rank numbers whole books, or all of them only what is used."""
    at = lines_in("distributed-profiling", "train_fsdp.py", shift)
    up, down, numbers = at("hidden = F.relu("), at("return x + self.down("), at("return [NUMBERS.get(")
    forward, backward = at("loss = job.model(letters)"), at("loss.backward()")
    upload, optimizer = at("letters = batch("), at("job.optimizer.step()")

    def step(rank: Rank) -> None:
        world = rank.cluster.ranks
        rank.host(numbers, BOOKS_NS if rank.number and not cropped else POSTS_NS)
        rank.kernel(upload, "embedding_kernel", 20_000)
        for block in range(4):
            rank.collective(forward, "AllGather_RING_LL", 210_000, members=world,
                            message_bytes=round(SHARD_MIB / 2 * MIB))  # fmt: skip
            rank.wait(forward, COMPUTE, COMMUNICATION)
            rank.kernel(up, "nvjet_hsh_gemm_up", 360_000, node=10 * block)
            rank.kernel(down, "nvjet_hsh_gemm_down", 330_000, node=10 * block + 2)
        for block in reversed(range(4)):
            rank.collective(backward, "AllGather_RING_LL", 210_000, members=world, thread=2,
                            message_bytes=round(SHARD_MIB / 2 * MIB))  # fmt: skip
            rank.wait(backward, COMPUTE, COMMUNICATION)
            for _ in range(2):
                rank.backward(down, "nvjet_hsh_gemm_down_bwd", 330_000, 10 * block + 2)
            rank.backward(up, "relu_bwd_kernel", 60_000, 10 * block)
            rank.backward(up, "layer_norm_bwd_kernel", 40_000, 10 * block)
            for _ in range(2):
                rank.backward(up, "nvjet_hsh_gemm_up_bwd", 340_000, 10 * block)
            rank.wait(backward, COMMUNICATION, COMPUTE)
            rank.collective(backward, "ReduceScatter_Sum_f32_RING_LL", 420_000, members=world, thread=2,
                            message_bytes=round(SHARD_MIB * MIB))  # fmt: skip
        rank.wait(backward, COMPUTE, COMMUNICATION)
        rank.kernel(optimizer, "multi_tensor_apply_kernel", 300_000)
        rank.sync(upload)

    return step


COLD_NS, READS_NS, TRANSFER_NS = 380_000_000, 10_800_000, 31_000


def cold(warm: bool, shift: int) -> Program:
    """E38: the first call makes the communicator; before the second one a rank reads many samples."""
    at = lines_in("cold-collectives", "cold_collectives.py", shift)
    read, reduce = at("[json.loads(line)"), at("dist.all_reduce(link.gradient)")

    def step(rank: Rank) -> None:
        if rank.step == 1 and not warm:
            rank.host(read, READS_NS if rank.number else READS_NS // 50)

        def call() -> None:
            if rank.step == 0:
                rank.host(reduce, COLD_NS)
            rank.collective(
                reduce, "AllReduce_Sum_f32_RING_LL", TRANSFER_NS, members=2, message_bytes=4 * MIB
            )

        rank.named(f"all_reduce {rank.step}", call)

    return step


def made_cold(folder: Path, solved: bool = False, shift: int = 0) -> Path:
    """Of E38's job, or of one whose ranks come together."""
    caller = "/app/cold_collectives.py:1 main"
    cluster = Cluster(2, cold(solved, shift), samples=True, caller=caller, step_name="step {}")
    cluster.run(10).write(folder)
    return folder


def made_distributed(folder: Path, solved: bool = False, shift: int = 0) -> Path:
    """Of E11's jobs as they are, or of the solution. The traces of torch.profiler are those of a job of the
    same kind in another format.
    """
    programs = {"ddp": train_ddp(solved, shift), "fsdp2": train_fsdp(solved, shift)}
    for name, program in programs.items():
        caller = f"/app/train_{name.rstrip('2')}.py:1 main"
        Cluster(2, program, samples=name == "fsdp2", caller=caller).run(STEPS).write(folder / name)
    job = Job(ranks=2, steps=3, clock_error=defaultdict(int, {1: 300_000}))
    if not solved:
        job.slow_compute[0] = 4_000_000
    (folder / "torch").mkdir()
    job.write_torch(folder / "torch")
    return folder


def made_ddp_training(folder: Path, solved: bool = False, shift: int = 0) -> Path:
    """Of E04's program as it is, or of the solution."""
    caller = "/app/ddp_training.py:1 train"
    Cluster(2, ddp_training(not solved, shift), caller=caller).run(STEPS).write(folder)
    return folder


MADE = {
    "multi-gpu-timeline": made_ddp_training,
    "distributed-profiling": made_distributed,
    "cold-collectives": made_cold,
}


def recordings(slug: str, folder: Path, solved: bool = False) -> Path:
    """Those of two GPUs that come with the exercise, if they are there; else made ones, in this folder."""
    recorded = find(slug).folder / "recorded"
    there = sorted(recorded.glob("solution_h*" if solved else "starter_h*"))
    return there[0] if there else MADE[slug](folder, solved)
