# SPDX-License-Identifier: Apache-2.0
"""Which reports of a sanitizer are about the recorder: prints each once; status 1 if there is any.

The thread sanitizer does not know sem_clockwait, on which Python's locks rest, so it calls memory of Python,
numpy and Arrow raced for. A report counts when the code that touched the memory, on either side, is the
recorder's own.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# Frames of the sanitizer itself or of the C and C++ libraries, called by whoever comes next.
LIBRARY = re.compile(
    r"lib(asan|tsan|ubsan|c|stdc\+\+|gcc_s|pthread)\.so|/include/c\+\+/|\.\./\.\./\.\./\.\./src/"
)
START = re.compile(r"^=+\n|(?=^\S+: runtime error: )", re.MULTILINE)
FRAME = re.compile(r"^ +#\d+ .*$", re.MULTILINE)


def accesses(report: str) -> list[str]:
    """Stacks of the accesses; those of threads, locks and allocations come behind "Location" and the like."""
    paragraphs = re.split(r"\n\s*\n", report)
    access = r"\s*(WARNING|ERROR|==\d+==ERROR|(Previous|\w+ )?.* of size|\S+: run)"
    told = [paragraph for paragraph in paragraphs if re.match(access, paragraph)]
    return told or paragraphs[:1]


def is_ours(report: str) -> bool:
    for stack in accesses(report):
        frames = [frame for frame in FRAME.findall(stack) if not LIBRARY.search(frame)]
        if frames and ("_recorder." in frames[0] or "csrc/" in frames[0]):
            return True
    return "runtime error" in report and "csrc/" in report


def place(report: str) -> str:
    """By which two reports are the same: their functions, without addresses and process ids."""
    return "\n".join(re.sub(r"0x[0-9a-f]+|\(BuildId.*|#\d+", "", f) for f in FRAME.findall(report)[:6])


def ran(log: str) -> bool:
    """Whether the tests ran. A few may fail of the sanitizer's slowness; most: nothing was tried."""
    count = {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|error)", log[-2000:])}
    return count.get("passed", 0) > 4 * (count.get("failed", 0) + count.get("error", 0))


def main() -> int:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    if not ran((folder / "pytest.log").read_text(errors="replace")):
        print(f"{kind}: too few of the tests passed, see {folder / 'pytest.log'}")
        return 1
    reports = [
        report
        for path in sorted(folder.glob("report.*"))
        for report in START.split(path.read_text(errors="replace"))
        if "Sanitizer" in report or "runtime error" in report
    ]
    ours = {place(report): report for report in reports if is_ours(report)}
    for report in ours.values():
        print(report)
    print(f"{kind}: {len(reports)} reports, {len(ours)} different ones about the recorder")
    return 1 if ours else 0


if __name__ == "__main__":
    sys.exit(main())
