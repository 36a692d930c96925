# SPDX-License-Identifier: Apache-2.0
"""Measure train.py on 1, 2, 4, ... GPUs, and record it on all of them: the numbers go into scaling.json.

python scaling_benchmark.py
python scaling_benchmark.py -o after.json         of the repaired train.py
python scaling_benchmark.py --show scaling.json   print it again
python scaling_benchmark.py --cpu                 two processes, no GPU: shows what it does, records nothing
"""

import argparse
import json
import tempfile
from pathlib import Path

from profiling_lab.exercises.rank_programs import on_ranks, recorded, run
from profiling_lab.measure import machine
from profiling_lab.measure.local_ranks import gpus
from profiling_lab.measure.scaling import (
    amdahl,
    gustafson,
    points_of,
    strong_efficiency,
    weak_efficiency,
)

PROGRAM = "train.py"
STEPS, REPEATS, CPU_REPEATS = 5, 11, 3
RECORDED_STEPS = "4:11"
"""of one measurement; the first steps connect the ranks and grow memory"""


def timed(ranks, device):
    """The times of train.py on a number of ranks, strong and weak."""
    repeats = str(CPU_REPEATS if device == "cpu" else REPEATS)
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder, "times.json")
        how = ["--scaling", "strong", "weak", "--steps", str(STEPS), "--repeats", repeats]
        print(run([*on_ranks(ranks), PROGRAM, *how, "--device", device, "--times", str(times)]), end="")
        return json.loads(times.read_text())


def show(runs):
    """The table, and the laws that are fitted to it."""
    for scaling, efficiency, fit in (
        ("strong", strong_efficiency, amdahl),
        ("weak", weak_efficiency, gustafson),
    ):
        mine = [each for each in runs if each["scaling"] == scaling]
        points = points_of({each["gpus"]: [round(1e6 * ms) for ms in each["step_ms"]] for each in mine})
        for point, frac in zip(points, efficiency(points).values(), strict=True):
            ms, error = point.median_ns / 1e6, point.error_ns / 1e6
            print(
                f"{scaling:6}  {point.gpus} GPUs  {ms:8.3f} +- {error:.3f} ms  efficiency {100 * frac:5.1f} %"
            )
        print(f"{fit.__name__}: {fit(points)}")


def main():
    parser = argparse.ArgumentParser(description="Measure how train.py scales.")
    parser.add_argument("-o", "--output", type=Path, default=Path("scaling.json"))
    parser.add_argument("--cpu", action="store_true", help="two processes without GPUs")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print one of these files, measure nothing")
    parser.add_argument("--most", type=int, default=4, help="the most GPUs (default: 4)")
    args = parser.parse_args()
    if args.show:
        show(json.loads(args.show.read_text())["runs"])
        return
    device, most = ("cpu", 2) if args.cpu else ("cuda", min(gpus(), args.most))
    if most < 2:
        raise SystemExit(
            f"expected two GPUs, found {most}: --cpu runs without, recorded/ has what four H200 gave"
        )
    counts = [count for count in (1, 2, 4, 8) if count <= most]
    most = counts[-1]
    runs = [run for count in counts for run in timed(count, device)]
    files = []
    if not args.cpu:
        files = recorded(most, args.output.stem, [PROGRAM, "--steps", "10"], RECORDED_STEPS)
    here = machine(device)
    facts = {"gpu": here.gpu, "driver": here.driver, "torch": here.torch, "date": here.date}
    args.output.write_text(json.dumps({**facts, "runs": runs, "recordings": files}, indent=1) + "\n")
    show(runs)


if __name__ == "__main__":
    main()
