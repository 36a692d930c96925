# SPDX-License-Identifier: Apache-2.0
"""profiling-lab demo: record a real program and find its slow line, in half a minute."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path

HELP = "record a training script that has a slow layer, and find its line"
EXAMPLES = """\
  profiling-lab demo
  profiling-lab demo --heavy loop            no kernel is slow, but one line is
  profiling-lab demo --output demo.sqlite    keep the recording"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--heavy",
        choices=("slow", "loop", "fast"),
        default="slow",
        help="the defect: one slow kernel (default), many tiny kernels, or none",
    )
    parser.add_argument("--output", "-o", type=Path, metavar="FILE", help="keep the recording; needs a GPU")
    parser.add_argument("--format", choices=("table", "json"), default="table")


def run(args: argparse.Namespace) -> int:
    from tempfile import TemporaryDirectory

    from profiling_lab.demo.story import tell
    from profiling_lab.demo.training import record_training
    from profiling_lab.exercises.exercise import Need
    from profiling_lab.report.screen.terminal import say
    from profiling_lab.trace import Trace

    if missing := Need.GPU.missing():
        return _without_gpu(args, missing)
    with TemporaryDirectory(prefix="profiling-lab-demo-") as folder:
        path = args.output or Path(folder) / "demo.sqlite"
        record_training(path, args.heavy, lambda text: print(text, file=sys.stderr))
        with Trace.open(path) as trace:
            tell(trace, args.format)
    if args.format == "table":
        kept = f"profiling-lab lines {path}" if args.output else "profiling-lab demo --output demo.sqlite"
        say(
            sys.stdout,
            ["", f"Next: {kept}, or find it yourself: profiling-lab exercise start python-backtrace"],
        )
    return 0


def _without_gpu(args: argparse.Namespace, missing: str) -> int:
    """Show that the program runs, and analyse the recording that ships with the package."""
    from profiling_lab.demo.story import tell
    from profiling_lab.demo.training import train_on_cpu
    from profiling_lab.errors import UsageError
    from profiling_lab.exercises import find
    from profiling_lab.report.screen.terminal import say
    from profiling_lab.trace import Trace

    if args.output:
        raise UsageError(f"--output needs a recording of this machine's GPU, but {missing}")
    with redirect_stdout(sys.stderr if args.format == "json" else sys.stdout):
        print(
            f"No GPU to record here ({missing}). A tiny training run on the CPU shows that the program works,"
        )
        print("followed by the recording of an H200 that ships with this package.\n")
        train_on_cpu(args.heavy)
        print()
    with Trace.open(find("python-backtrace").folder / "recorded" / "demo_h200.sqlite") as trace:
        tell(trace, args.format)
    if args.format == "table":
        say(sys.stdout, ["", "Next: profiling-lab exercise start python-backtrace"])
    return 0
