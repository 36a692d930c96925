# SPDX-License-Identifier: Apache-2.0
"""Which NCCL calls a kernel belongs to: alone, in a group, as an all-to-all of sends and receives."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from builders import TraceBuilder

from profiling_lab.analysis.ranks import Options, summarize
from profiling_lab.trace import Trace
from profiling_lab.trace.extras import CollectiveFacts

COMMUNICATOR, OTHER = 0xABCDEF, 0x123456
CALL, PEER, INIT = 16777220, 16777225, 16777218
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
FIELDS = {
    CALL: (("NCCL communicator ID", 18, 0), ("Message size [bytes]", 22, 8)),
    PEER: (("NCCL communicator ID", 18, 0), ("Message size [bytes]", 22, 8), ("Peer rank", 5, 16)),
    INIT: (("NCCL communicator ID", 18, 0), ("No. of ranks", 5, 8), ("Rank", 5, 12)),
}


class Nccl(TraceBuilder):
    """What NCCL's ranges look like in an export with payloads."""

    def communicator(self, ranks: int, communicator: int = COMMUNICATOR) -> Nccl:
        for schema, fields in FIELDS.items():
            for i, (name, kind, offset) in enumerate(fields):
                self.row("NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=1, schemaId=schema, idx=i, type=kind,
                         name=name, offset=offset)  # fmt: skip
        return self._range("ncclCommInitRankConfig", INIT, struct.pack("<Qiii", communicator, ranks, 0, 0))

    def nccl(self, name: str, size: int, communicator: int = COMMUNICATOR, *kernels: str) -> Nccl:
        """A call, and the kernels that it launches."""
        return self._range(name, CALL, struct.pack("<QQ", communicator, size), *kernels)

    def pair(self, name: str, size: int, peer: int, *kernels: str) -> Nccl:
        return self._range(name, PEER, struct.pack("<QQi", COMMUNICATOR, size, peer), *kernels)

    def group(self, starts: bool, *kernels: str) -> Nccl:
        return self._range("ncclGroupStart" if starts else "ncclGroupEnd", None, b"", *kernels)

    def _range(self, name: str, schema: int | None, fields: bytes, *kernels: str) -> Nccl:
        begin = self.now_ns
        self.gap(500)
        for kernel in kernels:
            self.launch(kernel, 2000)
        payload = None
        if schema is not None:
            payload = struct.pack("<IIIIQQ", 1, 0, schema, 0, len(fields), 32 + len(fields)) + fields
        self.range(name, begin, self.now_ns, domainId=1, binaryData=payload)
        self.gap(500)
        return self


def facts_of(builder: Nccl, tmp_path: Path) -> list[CollectiveFacts | None]:
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        return trace.source.collectives(trace.whole, np.arange(len(trace.operations)))


def test_an_all_to_all_is_one_collective(tmp_path: Path) -> None:
    """Item by item a send and a receive per rank, itself included; NCCL made two kernels of them."""
    builder = Nccl(form="nsys").communicator(4)
    for _ in range(2):
        builder.group(True)
        for peer in range(4):
            builder.pair("ncclSend", 1000 + peer, peer).pair("ncclRecv", 3000, peer)
        builder.group(False, SEND_RECV, SEND_RECV)
    found = facts_of(builder, tmp_path)
    assert {(f.kind, f.group, f.size) for f in found if f} == {("AllToAll", "communicator abcdef", 4)}
    # A rank sends 1000 + 1001 + 1002 + 1003 and receives 12000: the larger direction counts.
    assert [f.size_bytes for f in found if f] == [12000] * 4
    assert len({f.part_of for f in found if f}) == 2 and len(found) == 4
    with Trace.open(tmp_path / "run.sqlite") as trace:
        (summary,) = summarize(trace, Options())
    ((series, occurrences),) = summary.collectives.series.items()
    assert series.kind == "AllToAll" and series.is_together and not series.ends_together
    assert len(occurrences.number) == 2, "the kernels of one group are one collective"
    assert (occurrences.end_ns - occurrences.start_ns >= 4000).all(), "from the first to the end of the last"


@pytest.mark.parametrize(
    ("ranks", "sends", "receives", "kind"),
    [
        (2, [0, 1], [0, 1], "AllToAll"),
        (2, [1], [1], "SendRecv"),
        (4, [1, 2, 3], [1, 2, 3], "AllToAll"),  # what it keeps it copies itself
        (4, [1, 3], [1, 3], "SendRecv"),  # neighbours
        (4, [1], [3], "SendRecv"),
        (4, [1], [], "SendRecv"),
        (4, [0, 1, 2, 3], [], "SendRecv"),  # a scatter
    ],
)
def test_who_exchanges_with_whom(
    tmp_path: Path, ranks: int, sends: list[int], receives: list[int], kind: str
) -> None:
    builder = Nccl(form="nsys").communicator(ranks).group(True)
    for peer in sends:
        builder.pair("ncclSend", 100, peer)
    for peer in receives:
        builder.pair("ncclRecv", 100, peer)
    (found,) = facts_of(builder.group(False, SEND_RECV), tmp_path)
    assert found is not None and (found.kind, found.size) == (kind, ranks)
    assert found.size_bytes == 100 * max(len(sends), len(receives))


def test_a_group_of_unknown_size_is_not_called_all_to_all(tmp_path: Path) -> None:
    builder = Nccl(form="nsys").communicator(4, OTHER).group(True)
    for peer in range(4):
        builder.pair("ncclSend", 100, peer).pair("ncclRecv", 100, peer)
    (found,) = facts_of(builder.group(False, SEND_RECV), tmp_path)
    assert found is not None and (found.kind, found.size, found.size_bytes) == ("SendRecv", 0, 400)


def test_the_call_of_its_own_that_newer_nccl_has(tmp_path: Path) -> None:
    """ncclAlltoAll notes the block for one rank; its kernels are those of sends and receives."""
    builder = Nccl(form="nsys").communicator(4)
    builder.nccl("ncclAlltoAll", 1 << 20, COMMUNICATOR, SEND_RECV)
    builder.nccl("ncclAlltoAll", 1 << 20, OTHER, SEND_RECV)
    known, unknown = facts_of(builder, tmp_path)
    assert known is not None and (known.kind, known.size_bytes) == ("AllToAll", 4 << 20)
    assert unknown is not None and (unknown.kind, unknown.size_bytes) == ("AllToAll", -1)


def test_sends_without_a_group(tmp_path: Path) -> None:
    builder = Nccl(form="nsys").communicator(2)
    builder.pair("ncclSend", 700, 1, SEND_RECV).pair("ncclRecv", 900, 1, SEND_RECV)
    # Launched after its range: of a group that the file does not have.
    builder.pair("ncclSend", 700, 1).pair("ncclRecv", 900, 1).launch(SEND_RECV, 2000)
    found = facts_of(builder, tmp_path)
    assert [(f.kind, f.size_bytes) for f in found if f] == [
        ("SendRecv", 700), ("SendRecv", 900), ("SendRecv", -1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "kernels", "expected"),
    [
        ([100, 300], 1, [400]),  # fused into one kernel
        ([100, 100], 2, [100, 100]),
        ([100, 300], 2, [-1, -1]),  # NCCL may have sorted them
        ([100, 100, 100], 2, [-1, -1]),
    ],
)
def test_several_calls_in_a_group(
    tmp_path: Path, sizes: list[int], kernels: int, expected: list[int]
) -> None:
    builder = Nccl(form="nsys").communicator(2).group(True).group(True)
    for size in sizes:
        builder.nccl("ncclAllReduce", size)
    builder.group(False).group(False, *[ALL_REDUCE] * kernels)
    builder.nccl("ncclAllReduce", 50, COMMUNICATOR, ALL_REDUCE)
    found = facts_of(builder, tmp_path)
    assert [f.size_bytes for f in found if f] == [*expected, 50]
    assert {f.group for f in found if f} == {"communicator abcdef"}


def test_two_communicators_in_a_group(tmp_path: Path) -> None:
    builder = Nccl(form="nsys").communicator(2).group(True)
    builder.nccl("ncclAllReduce", 100).nccl("ncclAllReduce", 300, OTHER)
    (found,) = facts_of(builder.group(False, ALL_REDUCE), tmp_path)
    assert found is not None and (found.group, found.size, found.size_bytes) == ("", 0, -1)


def test_a_replayed_graph_has_no_call(tmp_path: Path) -> None:
    """Its kernels were captured inside an earlier call, with another size."""
    builder = Nccl(form="nsys").communicator(2).nccl("ncclAllReduce", 100)
    builder.launch(ALL_REDUCE, 2000, api="cudaGraphLaunch_v10000")
    assert facts_of(builder, tmp_path) == [None]
