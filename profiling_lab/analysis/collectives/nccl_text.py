# SPDX-License-Identifier: Apache-2.0
"""What NCCL says of itself with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,TUNING: its version, channels and
transports, and the algorithm and protocol of each collective.

The text has no documented form. These are lines of NCCL 2.19 to 2.28; those of other versions may not be
found, and what was not found is unknown. The name of a kernel says nothing about the protocol: one kernel,
called RING_LL, runs all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

VARIABLES = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING"}
"""what to set, with NCCL_DEBUG_FILE"""
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_CHANNELS = re.compile(r"(\d+) coll channels")
_TRANSPORT = re.compile(r"Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\].* via (\S+)")
_NAMED = re.compile(
    r"NCCL INFO (\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}"
)
_NUMBERED = re.compile(r"NCCL INFO (\d+) Bytes -> Algo (\d) proto (\d) time")
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
_ALL = (_VERSION, _CHANNELS, _TRANSPORT, _NAMED, _NUMBERED)


@dataclass(frozen=True, slots=True)
class NcclChoice:
    """How NCCL carries out one collective."""

    kind: str
    """'' where the text does not say it"""
    size_bytes: int
    algorithm: str
    protocol: str
    channels: int | None
    """thread blocks of its kernel; None where the text does not say it"""


@dataclass(frozen=True, slots=True)
class NcclFacts:
    """All that was found."""

    version: str
    channels: int | None
    """the most that a collective may use"""
    transports: tuple[tuple[str, int], ...]
    """how ranks are joined, with the number of such connections, the most frequent first"""
    choices: tuple[NcclChoice, ...]
    """distinct, in the order of the text"""

    def of(self, kind: str, size_bytes: int) -> NcclChoice | None:
        """The choice for a collective of about this size; None if there is none."""
        near = [c for c in self.choices if c.kind in ("", kind) and abs(c.size_bytes / size_bytes - 1) < 0.01]
        return near[-1] if near else None


def nccl_facts(text: str) -> NcclFacts:
    """What is in the text of one rank, or of all."""
    choices = [
        NcclChoice(kind, int(size), algorithm, protocol, int(last) - int(first) + 1)
        for kind, size, algorithm, protocol, first, last in _NAMED.findall(text)
    ]
    choices += [
        NcclChoice("", int(size), _ALGORITHMS[int(algorithm)], _PROTOCOLS[int(protocol)], None)
        for size, algorithm, protocol in _NUMBERED.findall(text)
        if int(algorithm) < len(_ALGORITHMS) and int(protocol) < len(_PROTOCOLS)
    ]
    version, channels = _VERSION.search(text), [int(number) for number in _CHANNELS.findall(text)]
    return NcclFacts(
        version=version[1] if version else "",
        channels=max(channels) if channels else None,
        transports=tuple(Counter(_TRANSPORT.findall(text)).most_common()),
        choices=tuple(dict.fromkeys(choices)),
    )


def telling_lines(text: str) -> list[str]:
    """The lines that `nccl_facts` reads, each once, without machine and process: small enough to keep."""
    found: dict[str, None] = {}
    for line in text.splitlines():
        if any(pattern.search(line) for pattern in _ALL):
            _, mark, said = line.partition("NCCL INFO ")
            found[f"{mark}{said}" if mark else line.strip()] = None
    return list(found)


def shown(facts: NcclFacts) -> Iterable[str]:
    """As lines for people."""
    yield f"NCCL {facts.version or '?'}, {facts.channels or '?'} channels for collectives"
    for transport, number in facts.transports:
        yield f"  via {transport}: {number} connections"
    for choice in facts.choices:
        blocks = "" if choice.channels is None else f", {choice.channels} channels"
        kind = choice.kind or "a collective"
        yield f"  {kind} of {choice.size_bytes:,} bytes: {choice.algorithm}, {choice.protocol}{blocks}"
