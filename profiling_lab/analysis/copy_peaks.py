# SPDX-License-Identifier: Apache-2.0
"""How fast copies could be at most: figures of vendors and of the PCIe standard, not measurements."""

from __future__ import annotations

import re

from profiling_lab.records import dataclass

GB = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes per second in one direction, and the source of the figure."""

    bytes_per_s: int
    source: str


# Of 16 lanes in one direction, as the standard has it; about 85 % of it can be used.
_PCIE = {3: 15_750_000_000, 4: 31_500_000_000, 5: 63_000_000_000}
_GENERATIONS = (
    (re.compile(r"\b(H100|H200|H20|H800|H100L|B100|B200|B300|RTX PRO|RTX 50\d\d)\b"), 5),
    (
        re.compile(
            r"\b(A100|A800|A40|A30|A10G?|A16|L40S?|L4|L20|RTX A\d{4}|RTX 30[6-9]0|RTX 40[789]0|Ada)\b"
        ),
        4,
    ),
    (re.compile(r"\b(V100|T4|P100|P40|P4|TITAN|RTX 20\d\d|GTX 1\d\d\d|Quadro)\b"), 3),
)
_CHIP_TO_CHIP = re.compile(r"\b(GH200|GB200|GB300)\b")


def host_link(gpu: str) -> Peak | None:
    """The link between the host and a GPU of that name; None for a GPU that is not known here."""
    name = gpu.replace("-", " ")
    if _CHIP_TO_CHIP.search(name):
        return Peak(450 * GB, "NVLink-C2C, vendor figure")
    for pattern, generation in _GENERATIONS:
        if pattern.search(name):
            return Peak(_PCIE[generation], f"PCIe {generation} x16, figure of the standard")
    return None
