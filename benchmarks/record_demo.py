# SPDX-License-Identifier: Apache-2.0
"""Record the traces that ship with the exercise, on a machine with a GPU.

    python benchmarks/record_demo.py                    our recorder: recorded/demo_<gpu>.sqlite
    python benchmarks/record_demo.py --with nsys        nsys, the same steps of the same program:
    recorded/nsys_<gpu>.sqlite

Both are reduced (reduce_trace.py) and must stay under a megabyte.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from reduce_trace import SIZE_LIMIT_BYTES, reduce

from profiling_lab.demo.training import record_training, training_script
from profiling_lab.exercises import find

# What really records Python stacks: exercises/e17_python_backtrace/profile_python.sh says why each flag is
# there.
NSYS = ("nsys", "profile", "--trace=cuda,nvtx", "--python-backtrace=cuda", "--cudabacktrace=all:0",
        "--sample=process-tree", "--force-overwrite=true", "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop")  # fmt: skip
EXPORT = ("nsys", "export", "--type=sqlite", "--include-json=true", "--force-overwrite=true")


def main() -> int:
    parser = argparse.ArgumentParser(description="Record the traces that ship with the exercise.")
    parser.add_argument("--with", dest="recorder", choices=("ours", "nsys"), default="ours")
    parser.add_argument("--heavy", choices=("slow", "loop", "fast"), default="slow")
    parser.add_argument("--steps", type=int, default=2, help="half of the steps in the recording (2)")
    parser.add_argument("--gpu", default="h200", help="for the file's name")
    parser.add_argument("--folder", type=Path, default=find("python-backtrace").folder / "recorded")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train_between_marks(args.heavy, args.steps)
        return 0
    args.folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="profiling-lab-record-") as folder:
        full = Path(folder) / "full.sqlite"
        record = with_nsys if args.recorder == "nsys" else with_ours
        record(full, args.heavy, args.steps)
        target = args.folder / f"{'nsys' if args.recorder == 'nsys' else 'demo'}_{args.gpu}.sqlite"
        size = reduce(full, target, (str(Path(__file__).resolve().parent),))
    print(f"{target}: {size} bytes", file=sys.stderr)
    return 0 if size < SIZE_LIMIT_BYTES else 1


def with_ours(path: Path, heavy: str, steps: int) -> None:
    cost = record_training(path, heavy, lambda text: print(text, file=sys.stderr), steps)
    print(
        f"{cost.plain_step_ns / 1e6:.3f} ms per step, {cost.recorded_step_ns / 1e6:.3f} ms recorded",
        file=sys.stderr,
    )


def with_nsys(path: Path, heavy: str, steps: int) -> None:
    program = (sys.executable, __file__, "--train", "--heavy", heavy, "--steps", str(steps))
    report = path.with_suffix(".nsys-rep")
    subprocess.run([*NSYS, "-o", str(report.with_suffix("")), *program], check=True, stdout=sys.stderr)
    subprocess.run([*EXPORT, "-o", str(path), str(report)], check=True, stdout=sys.stderr)


def train_between_marks(heavy: str, steps: int) -> None:
    """The steps that `record_training` records, between the marks at which nsys starts and stops."""
    import torch

    with training_script() as script:
        training = script.build(script.parse_arguments(["--heavy", heavy, "--device", "cuda"]))
        script.train_epoch(*training, steps)
        torch.cuda.profiler.start()
        script.train_epoch(*training, steps)
        script.train_epoch(*training, steps)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    sys.exit(main())
