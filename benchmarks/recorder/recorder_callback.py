# SPDX-License-Identifier: Apache-2.0
"""What the recorder's own callbacks take per launch, without a GPU: the tests' fake stands in for CUPTI.

    python benchmarks/recorder/recorder_callback.py

Prints nanoseconds per launch (two callbacks; with `driver` four, as a launch through the runtime makes them)
for stacks of some depths, with caches as they are and after other memory was read.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from profiling_lab import _recorder

REPO = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the recorder's callbacks alone.")
    parser.add_argument("--depths", type=int, nargs="+", default=[10, 30], help="Python frames (10 30)")
    parser.add_argument(
        "--read-kb", type=int, nargs="+", default=[0, 64, 1024], help="other memory (0 64 1024)"
    )
    parser.add_argument("--chunks", type=int, default=8, help="of 2000 launches (8)")
    args = parser.parse_args()
    with TemporaryDirectory(prefix="profiling-lab-bench-") as folder:
        path = Path(folder) / "libfake_cupti.so"
        fake = build_fake(path)
        print("stacks  frames  driver  other memory   ns per launch")
        for stacks in (False, True):
            _recorder.start(
                spool_path=str(Path(folder) / "spool"),
                cupti_override=str(path),
                python_stacks=stacks,
                nvtx=False,
            )
            for depth in args.depths if stacks else [0]:
                for driver in (0, 1):
                    for kilobytes in args.read_kb:
                        cost = called_from(depth, fake, args.chunks, driver, kilobytes << 10)
                        print(f"{stacks!s:7} {depth:6} {driver:7} {kilobytes:10} KB {cost / 1000:15.0f}")
            _recorder.stop({})
    return 0


def build_fake(path: Path) -> ctypes.CDLL:
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    flags = ["-std=c++20", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{REPO / 'csrc'}"]
    source = REPO / "tests" / "recorder" / "fake_cupti" / "fake_cupti.cpp"
    subprocess.run([compiler, *flags, str(source), "-o", str(path)], check=True)
    fake = ctypes.CDLL(str(path))
    fake.fake_callback_cost.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_uint64)
    fake.fake_callback_cost.restype = ctypes.c_uint64
    return fake


def called_from(depth: int, fake: ctypes.CDLL, *arguments: int) -> int:
    """Picoseconds per launch, launched `depth` frames below the caller's."""
    if depth > 1:
        return called_from(depth - 1, fake, *arguments)
    return int(fake.fake_callback_cost(*arguments))


if __name__ == "__main__":
    sys.exit(main())
