# SPDX-License-Identifier: Apache-2.0
"""NCCL's own text. The lines are in the form of its sources; numbers and names are made."""

from __future__ import annotations

from profiling_lab.analysis.collectives.nccl_text import NcclChoice, nccl_facts, shown, telling_lines

NEW = """\
node:88:88 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.7<0>
node:88:88 [0] NCCL INFO cudaDriverVersion 13000
NCCL version 2.28.9+cuda13.0
node:88:101 [0] NCCL INFO Channel 00/24 : 0 1
node:88:101 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node:88:101 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read
node:88:101 [0] NCCL INFO Channel 02/0 : 0[0] -> 1[1] via P2P/CUMEM
node:88:101 [0] NCCL INFO 24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer
node:88:88 [0] NCCL INFO AllReduce: 4 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}
node:88:88 [0] NCCL INFO AllReduce: 805306368 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}
node:88:88 [0] NCCL INFO AllReduce: 805306368 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}
"""  # noqa: E501
OLD = """\
node:7:7 [0] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer
node:7:7 [0] NCCL INFO 805306368 Bytes -> Algo 1 proto 2 time 3970.683594
node:7:7 [0] NCCL INFO 4 Bytes -> Algo 9 proto 2 time 3.0
"""  # noqa: E501


def test_choices_of_new_versions() -> None:
    facts = nccl_facts(NEW)
    assert (facts.version, facts.channels) == ("2.28.9", 24)
    assert facts.transports == (("P2P/CUMEM", 2), ("P2P/CUMEM/read", 1))
    assert facts.choices == (
        NcclChoice("AllReduce", 4, "TREE", "LL", 1),
        NcclChoice("AllReduce", 805306368, "RING", "SIMPLE", 24),
    )
    assert facts.of("AllReduce", 805_300_000) == facts.choices[1]
    assert facts.of("AllGather", 805306368) is None and facts.of("AllReduce", 1 << 20) is None


def test_choices_of_older_versions_have_numbers() -> None:
    """An algorithm that is not known is left out."""
    facts = nccl_facts(OLD)
    assert facts.choices == (NcclChoice("", 805306368, "RING", "SIMPLE", None),)
    assert facts.of("AllReduce", 805306368) == facts.choices[0]


def test_another_text_has_nothing() -> None:
    facts = nccl_facts("loss 0.4\n")
    assert (facts.version, facts.channels, facts.transports, facts.choices) == ("", None, (), ())
    assert list(shown(facts)) == ["NCCL ?, ? channels for collectives"]


def test_kept_lines_say_the_same_and_nothing_of_the_machine() -> None:
    kept = telling_lines(NEW)
    assert nccl_facts("\n".join(kept)).choices == nccl_facts(NEW).choices
    assert nccl_facts("\n".join(kept)).version == "2.28.9"
    assert "node" not in "".join(kept) and "10.0.0.7" not in "".join(kept)
    assert len(kept) == len(set(kept)) == 7


def test_shown() -> None:
    assert list(shown(nccl_facts(NEW)))[-1] == "  AllReduce of 805,306,368 bytes: RING, SIMPLE, 24 channels"
