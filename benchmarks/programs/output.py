# SPDX-License-Identifier: Apache-2.0
"""Whether two runs of a program said the same, but for the numbers in it."""

from __future__ import annotations

import difflib
import re

_OURS = re.compile(r"^profiling-lab: ")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"[-+]?(\d[\d,_]*(\.\d*)?|\.\d+)([eE][-+]?\d+)?|\b(nan|inf)\b")
_RATE = re.compile(r"#\s*(it/s|s/it|[kMG]?B/s|img/s|batch/s|s/batch)|\?(it/s|s/it)")
_BAR = re.compile(r"[▏▎▍▌▋▊▉█━╸╺╴╶─]+")
_SPACE = re.compile(r"\s+")


def comparable(text: str) -> list[str]:
    """The lines of an output without what differs from run to run of any program: numbers, the bars and rates
    of a progress bar and what it overwrote, and our own summary.
    """
    lines = []
    for line in text.split("\n"):
        shown = line.rstrip("\r").rsplit("\r", 1)[-1]
        if _OURS.match(shown):
            continue
        for pattern, instead in ((_HEX, "#"), (_NUMBER, "#"), (_RATE, "#"), (_BAR, " "), (_SPACE, " ")):
            shown = pattern.sub(instead, shown)
        lines.append(shown.strip())
    return [line for line in lines if line]


def difference(before: str, after: str, most: int = 20) -> list[str]:
    """What of the comparable lines differs, as a diff; nothing where they are the same."""
    lines = difflib.unified_diff(comparable(before), comparable(after), "plain", "recorded", "", "", 1, "")
    return list(lines)[:most]
