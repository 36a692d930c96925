# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab roofline`: each line against the speed of light."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from profiling_lab.cli import _trace_arguments as shared

if TYPE_CHECKING:
    from profiling_lab.analysis.roofline.roofline import RooflineResult

HELP = "show FLOPs, bytes and rates of each line against what the GPU could do, and what would be won"
EXAMPLES = """\
  profiling-lab record --work -o run.sqlite train.py          count the work of one step
  profiling-lab peaks                                         measure the roof of this machine, once
  profiling-lab roofline run.sqlite
  profiling-lab roofline run.sqlite --by op                   one row per operator and dtype
  profiling-lab roofline run.sqlite --plot roofline.html      the plot, as a page of its own
  profiling-lab roofline run.sqlite --peaks h200.json         rates measured on another machine
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    parser.add_argument(
        "--by",
        choices=("line", "function", "module", "layer", "op", "kernel"),
        default="line",
        help="one row per line and phase (default), function, module or layer and phase, operator, or the "
        "longest kernel of an operator",
    )
    parser.add_argument(
        "--peaks",
        metavar="FILE",
        help="the rates of the GPU, as `profiling-lab peaks -o FILE` writes them (default: those measured "
        "on this machine for the same GPU, else the vendor's figures)",
    )
    parser.add_argument("--plot", metavar="HTML", help="also write the roofline plot to this file")
    shared.add_own(parser)
    shared.add_limit(parser, 20)
    shared.add_window(parser)
    shared.add_format(parser)


def _write_plot(path: Path, result: RooflineResult, name: str) -> None:
    """Raises UsageError if there is a file that is not such a plot."""
    from profiling_lab.errors import UsageError
    from profiling_lab.report.roofline.plot import BEGINNING, page

    if path.exists():
        with path.open("rb") as file:
            if file.read(len(BEGINNING)) != BEGINNING.encode():
                raise UsageError(f"{path} exists already and is not a plot of roofline; choose another name")
    path.write_text(page(result, name), encoding="utf-8")


def run(args: argparse.Namespace) -> int:
    from profiling_lab.report.table import write

    with shared.open_tables(args) as trace:
        table = trace.roofline(args.by, peaks=args.peaks, limit=args.limit)
        if args.plot:
            _write_plot(Path(args.plot), table.result, trace.trace.path.name)
        write(table.report, args.format)
    return 0
