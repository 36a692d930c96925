# SPDX-License-Identifier: Apache-2.0
"""What `profiling-lab ranks` takes for many ranks: seconds, processor time and memory, with two workers.

    python benchmarks/analysis/many_ranks.py -o benchmarks/results/many_ranks.jsonl
    python benchmarks/analysis/many_ranks.py --ranks 16 --events 1000000 -o RESULTS.jsonl

Jobs are made (many_ranks_job.py), so the truth is known: an answer that does not name the slow rank, its line
and what mending it wins within 5 % ends the benchmark. Memory is the peak of each process by what the system
says (VmHWM): of the command's own, and the largest of its workers.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from many_ranks_job import GAIN_NS, SLOW_LINE, RankJob, write_job

from profiling_lab.measure import ResultsFile, machine

BENCHMARK, OURS, WORKERS, LOOK_S = "many_ranks", "profiling-lab ranks", 2, 0.05


class Peaks(threading.Thread):
    """Watches a process and all below it until it ends."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self.bytes: dict[int, int] = {}

    def run(self) -> None:
        while self._look(self._pid):
            time.sleep(LOOK_S)

    def _look(self, pid: int) -> bool:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            below = [int(child) for task in Path(f"/proc/{pid}/task").iterdir()
                     for child in (task / "children").read_text().split()]  # fmt: skip
        except OSError:
            return False
        peak = [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")]
        self.bytes[pid] = max([self.bytes.get(pid, 0), *peak])
        for child in below:
            self._look(child)
        return bool(peak)  # a process that has ended and is not waited for has none

    @property
    def own(self) -> int:
        return self.bytes[self._pid]

    @property
    def of_a_worker(self) -> int:
        return max(peak for pid, peak in self.bytes.items() if pid != self._pid)


def measure(results: ResultsFile, job: RankJob, how: str) -> None:
    flags = ["--dask", "local"] if how == "dask" else []
    run = "import sys; from profiling_lab.cli import main; sys.exit(main())"
    folder = str(Path(job.files[0]).parent)
    command = [sys.executable, "-c", run, "ranks", folder, "--jobs", str(WORKERS), "--format", "json", *flags]
    used, began = _children_cpu_s(), time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peaks = Peaks(process.pid)
    peaks.start()
    text, _ = process.communicate()
    seconds, cpu_s = time.monotonic() - began, _children_cpu_s() - used
    peaks.join()
    if process.returncode:
        sys.exit(f"{' '.join(command[3:])} ended with {process.returncode}")
    _check(json.loads(text), job)
    case = {"ranks": len(job.files), "events_per_rank": job.events, "steps": job.steps, "how": how,
            "file_bytes": job.file_bytes, "workers": WORKERS}  # fmt: skip
    values = {
        "time": (seconds, "s"),
        "cpu_time": (cpu_s, "s"),
        "peak_memory": (peaks.own, "bytes"),
        "peak_memory_of_a_worker": (peaks.of_a_worker, "bytes"),
    }
    for metric, (value, unit) in values.items():
        results.add(BENCHMARK, case, OURS, metric, value, unit)
    said = (
        f"{len(job.files):6,} ranks of {job.events:9,} events, {how:5}: {seconds:7.1f} s, cpu {cpu_s:7.1f} s"
    )
    memory = f"{peaks.own / 1e6:6.0f} MB, a worker {peaks.of_a_worker / 1e6:6.0f} MB"
    print(said, memory, sep=", ", flush=True)


def _check(answer: dict[str, Any], job: RankJob) -> None:
    found = answer["data"]["summary"]
    named = (found["rank"], (found["blame"] or {}).get("line"))
    if named != (job.slow, SLOW_LINE) or abs(found["cost_ns"] / GAIN_NS - 1) > 0.05:
        sys.exit(f"expected rank {job.slow}, {SLOW_LINE} and {GAIN_NS} ns, found {found}")


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", "-o", type=Path, help="append JSON lines here")
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--events", type=int, default=10_000, help="of each rank (10,000)")
    parser.add_argument("--how", nargs="+", choices=("jobs", "dask"), default=["jobs", "dask"])
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:WORKERS])
    results = ResultsFile(args.output, replace(machine("cpu"), torch=None))
    for ranks in args.ranks:
        with tempfile.TemporaryDirectory() as folder:
            job = write_job(Path(folder), ranks, args.events)
            for how in args.how:
                measure(results, job, how)
    return 0


if __name__ == "__main__":
    sys.exit(main())
