# SPDX-License-Identifier: Apache-2.0
"""What compiling the attention kernels costs: CPU time and the largest process, file by file.

    cmake -G Ninja -S . -B build/cuda -DPROFILING_LAB_ANALYSIS=OFF -DPROFILING_LAB_RECORDER=OFF
    python benchmarks/attention_build.py --build build/cuda --output benchmarks/results/attention_build.jsonl

Runs the build's own commands one after the other, so that files do not disturb each other; what is summed is
the time on a core, which other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

from profiling_lab.measure import ResultsFile, machine


def commands(build: Path) -> dict[str, list[str]]:
    """The compilation of each attention file, by the file's name."""
    ninja = ["ninja", "-C", str(build), "-t", "commands"]
    listed = subprocess.run(ninja, capture_output=True, text=True, check=True).stdout
    found = {}
    for line in listed.splitlines():
        words = shlex.split(line)
        for word in words:
            if "/csrc/ops/attention/" in word and word.endswith((".cu", ".cpp")):
                found[word.partition("/csrc/ops/")[2]] = words
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, required=True, help="a configured build folder (Ninja)")
    parser.add_argument("--output", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    results = ResultsFile(options.output, machine("cpu"))
    total, largest = 0.0, 0
    for name, words in sorted(commands(options.build).items()):
        child = subprocess.Popen(words, cwd=options.build)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            return child.returncode
        seconds, peak = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
        results.add("attention_build", {"file": name}, "compiler", "cpu_time", seconds, "s")
        results.add("attention_build", {"file": name}, "compiler", "peak_memory", peak, "bytes")
        print(f"{name:<36}{seconds:6.1f} s {peak / 2**20:6.0f} MiB", flush=True)
        total, largest = total + seconds, max(largest, peak)
    print(f"{'all':<36}{total:6.1f} s {largest / 2**20:6.0f} MiB; on two cores at least {total / 2:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
