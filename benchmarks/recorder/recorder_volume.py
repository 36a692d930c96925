# SPDX-License-Identifier: Apache-2.0
"""What a large recording takes: memory while recording and converting, and the sizes of both files.

    python benchmarks/recorder/recorder_volume.py -o benchmarks/results/recorder_volume.jsonl

No GPU: the fake CUPTI of the tests launches, as fast as the consumer can follow. An event is a CUDA call with
its stack, or a kernel. Metrics of the recorder: peak_memory of the process that records (VmHWM), and of the
one that converts; capture and file in bytes; convert_time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from profiling_lab.measure import ResultsFile, machine

BENCHMARK = "recorder_volume"
REPO = Path(__file__).resolve().parents[2]
RECORDER_TESTS = REPO / "tests" / "recorder"

PEAK = """
def peak():
    (line,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10
"""
RECORD = (
    PEAK
    + """
import ctypes, os, sys, time
from fake_driver import Fake
from profiling_lab import _recorder
from profiling_lab.recording import Recorder
fake = Fake()
fake.library.fake_work.argtypes = (ctypes.c_uint32, ctypes.c_char_p)
Recorder(sys.argv[1]).start()
for _ in range(int(sys.argv[2]) // 4000):
    done = int(_recorder.status()["calls"])
    fake.work(2000, b"kernel")
    while int(_recorder.status()["calls"]) < done + 2000: time.sleep(0.001)
facts = _recorder.stop({})
assert facts["dropped_calls"] == facts["dropped_records"] == "0", facts
print(peak())
os._exit(0)
"""
)
CONVERT = (
    PEAK
    + """
import sys, time
from profiling_lab.recording.convert import convert
begin = time.perf_counter()
rows = convert(sys.argv[1] + ".spool", sys.argv[1]).rows
assert rows["PYREC_LAUNCH"] == rows["CUPTI_ACTIVITY_KIND_KERNEL"] == int(sys.argv[2]) // 2, rows
print(peak(), time.perf_counter() - begin)
"""
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what a large recording takes.")
    parser.add_argument("--output", "-o", type=Path, help="append JSON lines here")
    parser.add_argument("--events", type=int, default=10_000_000, help="calls and kernels (10 million)")
    args = parser.parse_args()
    results = ResultsFile(args.output, machine("cpu"))
    events = args.events // 4000 * 4000
    with TemporaryDirectory(prefix="profiling-lab-bench-") as folder:
        library = Path(folder) / "libfake_cupti.so"
        source = RECORDER_TESTS / "fake_cupti" / "fake_cupti.cpp"
        compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
        flags = ["-std=c++20", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{REPO / 'csrc'}"]
        subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
        out = Path(folder) / "run.sqlite"
        (recording,) = numbers(RECORD, out, events, library)
        capture = out.with_name(out.name + ".spool").stat().st_size
        converting, seconds = numbers(CONVERT, out, events, library)
        measured = {
            "peak_memory while recording": (recording, "bytes"),
            "peak_memory while converting": (converting, "bytes"),
            "capture": (capture, "bytes"),
            "file": (out.stat().st_size, "bytes"),
            "convert_time": (seconds, "s"),
        }
    for metric, (value, unit) in measured.items():
        results.add(BENCHMARK, {"events": events}, "recorder", metric, float(value), unit)
        print(f"{metric:30} {value:>16,.1f} {unit}", file=sys.stderr)
    return 0


def numbers(code: str, out: Path, events: int, library: Path) -> list[float]:
    """What a program printed last."""
    path = os.pathsep.join([os.environ.get("PYTHONPATH", str(REPO)), str(RECORDER_TESTS)])
    done = subprocess.run(
        [sys.executable, "-c", code, str(out), str(events)],
        env={**os.environ, "PYTHONPATH": path, "PROFILING_LAB_CUPTI": str(library)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [float(word) for word in done.stdout.splitlines()[-1].split()]


if __name__ == "__main__":
    sys.exit(main())
