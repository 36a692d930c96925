# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab ncu`: the hardware counters of the kernels that one line launched."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from profiling_lab.cli import _trace_arguments as shared

if TYPE_CHECKING:
    from profiling_lab.analysis.ncu.plan import Plan
    from profiling_lab.api import TraceTables
    from profiling_lab.cli._parser import Parser

HELP = "profile with ncu only the kernels of a line: throughput, occupancy, stalls, access patterns"
EXAMPLES = """\
  profiling-lab ncu run.sqlite --line model.py:87 -- python train.py
  profiling-lab ncu run.sqlite --line model.py:87 --phase backward -- python train.py
  profiling-lab ncu run.sqlite --line model.py:87 --kill -- python train.py     end it after that
  profiling-lab ncu run.sqlite --line model.py:87 --dry-run -- python train.py  print the command
  profiling-lab ncu run.sqlite --line model.py:87 --from report.csv             what ncu wrote elsewhere

FILE is a recording of the same program: it says which kernels the line launched, forward and backward, and
in which order. One step of launches of kernels with these names is profiled; those of other lines are left
out by the order in the recording. It needs Nsight Compute, and permission to read the counters (`doctor`).

The program's output goes to standard error. Exit codes: that of the program, 2 usage or no such line, 3 ncu
measured nothing of the line, 4 unreadable file
"""


def add_arguments(parser: Parser) -> None:
    parser.takes_program = True
    shared.add_trace(parser)
    parser.add_argument("--line", metavar="FILE:LINE", required=True, help="such as model.py:87")
    parser.add_argument(
        "--phase",
        choices=("forward", "backward", "recompute", "optimizer", "all"),
        default="all",
        help="only kernels of this phase (default: all)",
    )
    parser.add_argument(
        "--launches",
        metavar="N",
        type=shared.positive,
        help="profile at most N launches (default: as many as one step has; each is replayed several times)",
    )
    parser.add_argument(
        "--from", dest="report", metavar="REPORT", help="read this CSV or .ncu-rep of ncu, run nothing"
    )
    parser.add_argument("-o", "--output", metavar="CSV", help="keep ncu's report in this file")
    parser.add_argument("--overwrite", action="store_true", help="replace that file if it exists")
    parser.add_argument(
        "--kill", action="store_true", help="end the program as soon as these launches are profiled"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the command line of ncu, run nothing")
    parser.add_argument(
        "--rank",
        metavar="R",
        type=int,
        action="append",
        default=[],
        help="the process of this rank, in a recording of a job",
    )
    shared.add_own(parser)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.analysis.ncu.plan import plan
    from profiling_lab.api import TraceTables
    from profiling_lab.errors import UsageError
    from profiling_lab.report.table import write

    if (args.report is None) == (not args.program):
        what = "both" if args.program else "neither"
        raise UsageError(f"expected a program after --, or --from REPORT, got {what}")
    if args.output and (args.report or args.dry_run):
        raise UsageError("-o keeps the report of a run: it cannot be combined with --from and --dry-run")
    if args.output and Path(args.output).exists() and not args.overwrite:
        raise UsageError(f"{args.output} exists already; choose another name with -o or pass --overwrite")
    args.range = args.step = args.nvtx = None
    args.device = []
    with shared.open_trace(args) as trace:
        tables = TraceTables(trace, own=args.own)
        if args.report is not None:
            write(tables.ncu(args.line, args.report, phase=args.phase).report, args.format)
            return 0
        planned = plan(trace, args.line, tuple(args.own), args.phase, args.launches)
        if args.dry_run:
            print(shlex.join(_command(args, _ncu(required=False), planned, args.output or "report.csv")))
            return 0
        return _profile(args, tables, planned)


def _ncu(*, required: bool) -> str:
    from profiling_lab.doctor.tools import find_tool
    from profiling_lab.errors import NotEnoughDataError

    path, _ = find_tool("ncu")
    if path is None and required:
        raise NotEnoughDataError(
            "ncu is not installed (it comes with Nsight Compute and the CUDA toolkit); --dry-run prints its "
            "command line for another machine, --from reads what it wrote there"
        )
    return path or "ncu"


def _command(args: argparse.Namespace, ncu: str, planned: Plan, report: str) -> tuple[str, ...]:
    from profiling_lab.analysis.ncu.command import command, known_metrics

    return command(ncu, planned, args.program, report, known_metrics(ncu), kill=args.kill)


def _profile(args: argparse.Namespace, tables: TraceTables, planned: Plan) -> int:
    """The exit code of the program, whatever became of its report."""
    import os
    import sys
    import tempfile

    from profiling_lab.analysis.ncu.report import PERMISSION, ReportError
    from profiling_lab.cli._launch import run_program
    from profiling_lab.errors import NotEnoughDataError
    from profiling_lab.report.table import write

    ncu = _ncu(required=True)
    with tempfile.TemporaryDirectory(prefix="profiling-lab-ncu-") as folder:
        report = Path(args.output).absolute() if args.output else Path(folder) / "ncu.csv"
        report.unlink(missing_ok=True)
        words = _command(args, ncu, planned, str(report))
        _say(f"profiling {planned.count:,} launches after the first {planned.skip:,} of these kernels")
        status, interrupted = run_program(ncu, list(words), os.environ, stdout=sys.stderr.fileno())
        if interrupted:
            raise KeyboardInterrupt
        try:
            table = tables.ncu(args.line, report, phase=args.phase, launches=args.launches)
        except (ReportError, NotEnoughDataError) as error:
            text = str(error)
            if isinstance(error, ReportError) and PERMISSION not in text:
                text = _nothing(report, planned)
            if status and PERMISSION not in text:
                _say(f"ncu: {text}")
                return status
            raise NotEnoughDataError(f"{text} (ncu ended with {status})") from None
    write(table.report, args.format)
    return 0 if args.kill else status


def _nothing(report: Path, planned: Plan) -> str:
    """What ncu itself said last, and what the recording expected."""
    said = [line for line in _lines(report) if line.startswith(("==ERROR==", "==WARNING=="))]
    last = f"; it says: {said[-1].partition('== ')[2].strip()}" if said else ""
    return (
        f"ncu profiled nothing of {planned.file}:{planned.line}: in the recording {planned.skip:,} launches "
        f"of {planned.kernels} came before, so the program may have ended earlier, or uses other "
        f"kernels now{last}"
    )


def _lines(report: Path) -> list[str]:
    try:
        return report.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _say(line: str) -> None:
    import sys

    print(f"profiling-lab: {line}", file=sys.stderr, flush=True)
