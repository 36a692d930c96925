# SPDX-License-Identifier: Apache-2.0
"""Programs for the made cluster (cluster.py): one step of training in the ways that jobs are split."""

from __future__ import annotations

from made_traces.cluster import COMMUNICATION, COMPUTE, Rank

BLOCKS = 4
DATA, TO_DEVICE, EMBED, LOSS, EXTRA, OPTIMIZER, VALUE, LOG = (
    f"train.py:{line}" for line in (20, 21, 31, 33, 37, 40, 41, 44)
)
QKV, ATTENTION, OUT, MLP = (f"model.py:{line}" for line in (20, 21, 22, 23))
SENDRECV, REDUCE, GATHER, SCATTER = (
    "SendRecv", "AllReduce_Sum_bf16_RING_LL", "AllGather_RING_LL", "ReduceScatter_Sum_bf16_RING_LL"
)  # fmt: skip


def layers(length: float) -> tuple[tuple[str, str, float, float], ...]:
    """Of one block (line, kernel, ns, thread blocks): attention grows with the square of the length."""
    return (
        (QKV, "gemm_qkv", 180_000 * length, 768 * length),
        (ATTENTION, "attention", 220_000 * length**2, 256 * length),
        (OUT, "gemm_out", 80_000 * length, 256 * length),
        (MLP, "gemm_mlp", 400_000 * length, 1024 * length),
    )


def input_of(rank: Rank) -> None:
    rank.load(DATA, 60_000)
    rank.host(TO_DEVICE, 10_000)
    rank.kernel(TO_DEVICE, "to_bf16", 5_000 * rank.length, blocks=16 * rank.length)
    rank.kernel(EMBED, "embed", 40_000 * rank.length, blocks=64 * rank.length, node=0)


def forward(rank: Rank, blocks: int = BLOCKS) -> None:
    for block in range(blocks):
        for i, (line, name, ns, count) in enumerate(layers(rank.length)):
            rank.kernel(line, name, ns, blocks=count, node=1 + 4 * block + i)
    rank.kernel(LOSS, "cross_entropy", 50_000 * rank.length, blocks=64 * rank.length, node=90)


def backward_of(rank: Rank, block: int) -> None:
    for i, (line, name, ns, count) in reversed(list(enumerate(layers(rank.length)))):
        rank.backward(line, f"{name}_bwd", 2 * ns, 1 + 4 * block + i, blocks=count)


def optimizer(rank: Rank) -> None:
    for i in range(3):
        rank.kernel(OPTIMIZER, f"multi_tensor_apply_{i}", 150_000, blocks=320)


def data_parallel(rank: Rank, synchronised: bool = True) -> None:
    """DDP: the gradients of a block are reduced while backward goes on."""
    world = rank.cluster.ranks
    input_of(rank)
    forward(rank)
    rank.backward(LOSS, "cross_entropy_bwd", 50_000 * rank.length, 90, blocks=64 * rank.length)
    for block in reversed(range(BLOCKS)):
        backward_of(rank, block)
        rank.wait("train.py:34", COMMUNICATION, COMPUTE)
        rank.collective("train.py:34", REDUCE, 600_000, members=world, thread=2)
    rank.wait("train.py:34", COMPUTE, COMMUNICATION)
    rank.kernel(EXTRA, "clip_norm", 20_000, blocks=64)
    optimizer(rank)
    if synchronised:
        rank.sync(VALUE)
    rank.host(LOG, 30_000)


def unsynchronised(rank: Rank) -> None:
    """DDP whose host runs ahead of the GPU and never waits for it."""
    data_parallel(rank, synchronised=False)


FSDP_BLOCKS, SMALL, SCATTERS = 16, 10, 24


def _small(rank: Rank, block: int, node: int, backward: bool) -> None:
    for i in range(SMALL):
        line = (QKV, ATTENTION, OUT, MLP)[i * 4 // SMALL]
        if backward:
            rank.backward(line, f"small_{i}_bwd", 30_000, node + i)
        else:
            rank.kernel(line, f"small_{i}", 20_000, node=node + i)


def fully_sharded(rank: Rank) -> None:
    """FSDP: parameters are gathered before a block runs, gradients scattered behind it. The kernels are small
    and the host slow, so that a rank without more to compute is late because of its host.
    """
    world = rank.cluster.ranks
    input_of(rank)
    for block in range(FSDP_BLOCKS):
        rank.collective("train.py:32", GATHER, 120_000, members=world)
        rank.wait("train.py:32", COMPUTE, COMMUNICATION)
        _small(rank, block, 100 + 20 * block, backward=False)
    rank.kernel(LOSS, "cross_entropy", 60_000, node=90)
    rank.kernel(EXTRA, "norm", 10_000)
    rank.backward(LOSS, "cross_entropy_bwd", 60_000, 90)
    for block in reversed(range(FSDP_BLOCKS)):
        rank.collective("train.py:34", GATHER, 120_000, members=world, thread=2)
        rank.wait("train.py:34", COMPUTE, COMMUNICATION)
        _small(rank, block, 100 + 20 * block, backward=True)
        rank.wait("train.py:34", SCATTERS, COMPUTE)
        rank.collective("train.py:34", SCATTER, 150_000, members=world, stream=SCATTERS, thread=2)
    rank.wait("train.py:34", COMPUTE, SCATTERS)
    optimizer(rank)
    rank.sync(VALUE)


def tensor_parallel(rank: Rank) -> None:
    """Two reductions in each block, on the stream of the compute: nothing hides them."""
    world = rank.cluster.ranks
    input_of(rank)
    for block in range(2 * BLOCKS):
        for i, (line, name, ns, count) in enumerate(layers(rank.length)):
            rank.kernel(line, name, ns / 2, blocks=count, node=1 + 4 * block + i)
            if line in (OUT, MLP):
                rank.collective(line, REDUCE, 60_000, members=world, stream=COMPUTE)
    rank.kernel(LOSS, "cross_entropy", 50_000, node=90)
    for block in reversed(range(2 * BLOCKS)):
        backward_of(rank, block)
        rank.collective("train.py:34", REDUCE, 60_000, members=world, stream=COMPUTE, thread=2)
    optimizer(rank)
    rank.sync(VALUE)


MICROBATCHES = 4
SEND, RECEIVE = "pipe.py:12", "pipe.py:18"


def pipeline(rank: Rank) -> None:
    """Stages that hand microbatches to the next one, forward and then backward."""
    first, last = rank.number == 0, rank.number == rank.cluster.ranks - 1

    def pass_on(line: str, low: int, *, to_next: bool) -> None:
        way = "forward" if to_next else "backward"
        rank.collective(line, SENDRECV, 80_000, members=2, group=(way, low), stream=COMMUNICATION + low % 2)

    rank.load(DATA, 60_000)
    for micro in range(MICROBATCHES):
        if not first:
            pass_on(RECEIVE, rank.number - 1, to_next=True)
            rank.wait(RECEIVE, COMPUTE, COMMUNICATION + (rank.number - 1) % 2)
        for i, (line, name, ns, count) in enumerate(layers(rank.length)):
            rank.kernel(line, name, ns, blocks=count, node=1 + 4 * micro + i)
        if not last:
            rank.wait(SEND, COMMUNICATION + rank.number % 2, COMPUTE)
            pass_on(SEND, rank.number, to_next=True)
    for micro in range(MICROBATCHES):
        if not last:
            pass_on(RECEIVE, rank.number, to_next=False)
            rank.wait(RECEIVE, COMPUTE, COMMUNICATION + rank.number % 2)
        backward_of(rank, micro)
        if not first:
            rank.wait(SEND, COMMUNICATION + (rank.number - 1) % 2, COMPUTE)
            pass_on(SEND, rank.number - 1, to_next=False)
    rank.wait("train.py:38", COMMUNICATION, COMPUTE)
    rank.collective("train.py:38", REDUCE, 20_000, members=rank.cluster.ranks)
    rank.wait("train.py:38", COMPUTE, COMMUNICATION)
    optimizer(rank)
    rank.sync(VALUE)
