# SPDX-License-Identifier: Apache-2.0
"""Records on this GPU what the guide shows of hardware counters, and what reading them costs.

    python tools/record_counters.py --out recordings/ [--only pairs,cost,step,layout,full]

pairs   benchmarks/counters/kernel_pairs.cu: times without a tool, and counters with every stall reason
cost    the same program alone, and under ncu with the sets basic and full: seconds (ncu_cost.jsonl)
step    one step of the demo: SM and DRAM use of every kernel; and the sections of its slow kernel
layout  E29, starter and solution: SM and DRAM use of the kernels of the last step
full    `ncu --set full` of flash_attention: the report, and its details as CSV

Needs nvcc and ncu. A part that fails is told, and the others go on. Copy the CSV files to
benchmarks/counters, and the lines of ncu_cost.jsonl to benchmarks/results. On an H200 the parts pairs and
full have been run to their end; cost, step and layout have not.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from profiling_lab.analysis.ncu import report as ncu_report
from profiling_lab.analysis.ncu.command import OPTIONS
from profiling_lab.analysis.ncu.consistency import ACHIEVED, LIMITS, LOADS, THEORETICAL
from profiling_lab.analysis.ncu.figures import BASIC, DRAM, MEMORY, SECTIONS, SM
from profiling_lab.demo.program import copy_program
from profiling_lab.exercises import find
from profiling_lab.exercises.ncu_profile import LAUNCH
from profiling_lab.measure import ResultsFile, machine

REPO = Path(__file__).resolve().parents[1]
SOURCE = REPO / "benchmarks" / "counters" / "kernel_pairs.cu"
STALLS = re.compile(r"smsp__average_warps_issue_stalled_\w+_per_issue_active\.ratio")
PAIRS = (
    *BASIC, *LOADS, SM, MEMORY, THEORETICAL, ACHIEVED, *LIMITS,
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "smsp__inst_executed.sum",
    "lts__t_sectors_op_read.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "smsp__inst_executed_op_shared_ld.sum",
)  # fmt: skip
USE = (SM, MEMORY, DRAM)
SKIPPED, STEP = 500, 238
"""launches of the demo: two steps and more, and those of one step, whichever comes first in it"""
SLOW_KERNEL = "heavy_layer_slow_kernel"
LIMIT_S = 120


def ran(command: Sequence[str], folder: Path) -> tuple[str, float, int]:
    """What a program printed, the seconds it took, and its exit code."""
    print(f"$ {' '.join(command)}"[:400], flush=True)
    begin = time.monotonic()
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    took_s = time.monotonic() - begin
    print(f"  {took_s:.1f} s, exit code {ended.returncode}", flush=True)
    return ended.stdout + ended.stderr, took_s, ended.returncode


def done(command: Sequence[str], folder: Path) -> tuple[str, float]:
    """As `ran`. Raises RuntimeError if it failed."""
    told, took_s, status = ran(command, folder)
    if status:
        raise RuntimeError(f"{command[0]} failed: {told[-1500:]}")
    return told, took_s


def counted(
    program: Sequence[str], folder: Path, target: Path, metrics: Sequence[str], *options: str
) -> ncu_report.Report:
    """The counters of a program's launches, in `target`. What this ncu does not know is left out and told."""
    wanted = list(dict.fromkeys((*LAUNCH, *metrics)))
    for _ in range(4):
        target.unlink(missing_ok=True)
        asked = ("--metrics", ",".join(wanted), "--log-file", str(target))
        told, _, _ = ran(["ncu", *OPTIONS, *options, *asked, *program], folder)
        told += target.read_text() if target.is_file() else ""
        errors = [line for line in told.splitlines() if "==ERROR==" in line or "Failed to find" in line]
        unknown = [name for name in wanted if any(name in line for line in errors)]
        if not unknown:
            break
        print(f"  unknown here: {', '.join(unknown)}")
        wanted = [name for name in wanted if name not in unknown]
    if not any(line.startswith('"ID"') for line in told.splitlines()):
        raise RuntimeError(told[-3000:])
    _reduce(target, wanted)
    report = ncu_report.read(target)
    every = {name for each in report.launches for name in wanted if not each.has(name)} - set(LAUNCH)
    print(f"  {len(report.launches)} launches; n/a: {', '.join(sorted(every)) or 'nothing'}", flush=True)
    return report


def _reduce(target: Path, wanted: Sequence[str]) -> None:
    """Keep the table, with the metrics that were asked for and the reasons of stalls."""
    rows = list(csv.reader(line for line in target.read_text().splitlines() if line.startswith('"')))
    kept = [
        n for n, name in enumerate(rows[0]) if "__" not in name or name in wanted or STALLS.fullmatch(name)
    ]
    with target.open("w", newline="") as file:
        table = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        table.writerows([row[n] for n in kept] for row in rows)


def _sections() -> list[str]:
    return [word for name in SECTIONS for word in ("--section", name)]


def _built(folder: Path) -> str:
    program = str(folder / "kernel_pairs")
    if not Path(program).is_file():
        done(["nvcc", "-O3", "-std=c++17", "-lineinfo", "-arch=native", "-o", program, str(SOURCE)], folder)
    return program


def pairs(folder: Path, out: Path) -> None:
    program = _built(folder)
    told, _ = done([program], folder)
    print(told)
    (out / "kernel_pairs_h200.txt").write_text(told)
    report = counted([program, "1"], folder, out / "kernel_pairs_h200.csv", PAIRS, *_sections())
    for launch in report.launches:
        stalls = sorted(
            ((value, name) for name, value in launch.metrics.items() if "issue_stalled" in name), reverse=True
        )
        short = [f"{re.sub('.*issue_stalled_|_per_issue.*', '', name)} {value:.2f}" for value, name in stalls]
        print(f"  {launch.function:18} {launch.duration_ns / 1e3:9.1f} us  {', '.join(short[:4])}")


def cost(folder: Path, out: Path) -> None:
    program = _built(folder)
    results = ResultsFile(out / "ncu_cost.jsonl", machine("cuda"))
    case = {"program": "kernel_pairs 1", "launches": 16}
    under = ["ncu", "--clock-control", "none", "--force-overwrite"]
    for name in ("alone", "basic", "full"):
        words = [] if name == "alone" else [*under, "--set", name, "-o", str(folder / name)]
        told, took_s = done([*words, program, "1"], folder)
        passes = [int(each) for each in re.findall(r"(\d+) passes", told)]
        results.add("ncu_cost", case, name, "seconds", took_s, "s")
        if passes:
            results.add("ncu_cost", case, name, "passes", sum(passes) / len(passes), "passes per launch")
        print(f"{name}: {took_s:.2f} s, passes {passes[:3]}", flush=True)


def step(folder: Path, out: Path) -> None:
    copy_program(folder)
    program = [sys.executable, "train_model.py", "--epochs", "1", "--batches", "4"]
    window = ("--launch-skip", str(SKIPPED), "--launch-count", str(STEP), "--kill", "yes")
    counted(program, folder, out / "demo_step_h200.csv", USE, *window)
    one = ("--kernel-name", SLOW_KERNEL, "--launch-skip", "1", "--launch-count", "1", "--kill", "yes")
    counted(program, folder, out / "demo_kernel_h200.csv", PAIRS, *_sections(), *one)


def layout(folder: Path, out: Path) -> None:
    exercise = find("memory-layout").folder
    for side, source in (("starter", exercise), ("solution", exercise / "solutions")):
        program = [sys.executable, str(source / "train.py"), "--steps", "2"]
        counted(program, folder, out / f"layout_{side}_h200.csv", USE)


def full(folder: Path, out: Path) -> None:
    program = [sys.executable, str(REPO / "benchmarks" / "profile_kernels.py"), "--impl", "flash"]
    done(program, folder)
    which = ("--nvtx", "--nvtx-include", "flash step 0/forward/", "--launch-count", "1")
    report = out / "flash_full_h200.ncu-rep"
    told, _ = done(
        ["ncu", "--set", "full", "--clock-control", "none", *which, "--export", str(report), *program], folder
    )
    print(told[-400:])
    text, _ = done(["ncu", "--import", str(report), "--csv", "--page", "details"], folder)
    table = "\n".join(line for line in text.splitlines() if line.startswith('"'))
    (out / "flash_details_h200.csv").write_text(table + "\n")
    print(f"report {report.stat().st_size:,} bytes, details {len(table):,} bytes")


PARTS: dict[str, Callable[[Path, Path], None]] = {
    "pairs": pairs, "cost": cost, "step": step, "layout": layout, "full": full,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="where the files go")
    parser.add_argument("--only", default=",".join(PARTS), help="with commas (default: all)")
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := set(chosen) - PARTS.keys():
        parser.error(f"--only knows {', '.join(PARTS)}, not {', '.join(sorted(unknown))}")
    args.out.mkdir(parents=True, exist_ok=True)
    failed = []
    with tempfile.TemporaryDirectory() as name:
        for part in chosen:
            print(f"=== {part}", flush=True)
            try:
                PARTS[part](Path(name), args.out.resolve())
            except Exception:  # the other parts go on
                traceback.print_exc()
                failed.append(part)
    print(f"failed: {', '.join(failed) or 'nothing'}")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
