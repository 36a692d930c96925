# SPDX-License-Identifier: Apache-2.0
"""What a recording says when it has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from profiling_lab.recording.meta_names import NOT_IN_THE_META_TABLE

_LOST = (
    "dropped_calls",
    "dropped_records",
    "dropped_ranges",
    "records_without_time",
    "callback_errors",
    "unwritten_records",
    "texts_cut",
    "unreadable_places",  # only where the capture was converted
)


@dataclass(frozen=True, slots=True)
class RecordingSummary:
    """What a finished recording holds.

    `launches` counts recorded CUDA calls, `stacks` those among them with a Python stack, `dropped` events and
    records that were lost. `reasons` says why something was not recorded: keys `gpu`, `stacks`, `nvtx`,
    `autograd`; a part that worked has no key. `meta` is what PYREC_META holds: more counts, versions, costs.
    """

    path: Path
    kernels: int
    copies: int
    launches: int
    stacks: int
    ranges: int
    dropped: int
    seconds: float
    reasons: dict[str, str]
    meta: dict[str, str]


def summarize(
    path: Path, meta: Mapping[str, str], reasons: Mapping[str, str], seconds: float
) -> RecordingSummary:
    """The summary of a recording that has ended: `meta` is what the recorder said last."""
    return RecordingSummary(
        path=path,
        kernels=int(meta["kernels"]),
        copies=int(meta["copies"]),
        launches=int(meta["calls"]),
        stacks=int(meta["calls_with_stack"]),
        ranges=int(meta["ranges"]),
        dropped=sum(int(meta.get(name, 0)) for name in _LOST),
        seconds=seconds,
        reasons=dict(reasons),
        meta={name: value for name, value in meta.items() if name not in NOT_IN_THE_META_TABLE},
    )
