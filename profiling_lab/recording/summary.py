# SPDX-License-Identifier: Apache-2.0
"""What a recording says when it has ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
