# SPDX-License-Identifier: Apache-2.0
"""The summary of a finished recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from profiling_lab.recording.meta_names import is_in_the_meta_table

_LOST = (
    "dropped_calls",
    "dropped_records",
    "dropped_ranges",
    "records_without_time",
    "callback_errors",
    "unwritten_records",
    "texts_cut",
    "unreadable_places",  # only set after the conversion
)


@dataclass(frozen=True, slots=True)
class RecordingSummary:
    """The contents of a finished recording.

    `launches` is the number of recorded CUDA calls, `stacks` of those with a Python stack, `dropped` of
    lost events and records. `reasons` says why something was not recorded, with the keys `gpu`, `stacks`,
    `nvtx`, `autograd`; a part that worked has no key. `meta` is the content of PYREC_META: more counts,
    versions, overhead.
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
    """The summary of a recording that has ended; `meta` is the recorder's final metadata."""
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
        meta={name: value for name, value in meta.items() if is_in_the_meta_table(name)},
    )
