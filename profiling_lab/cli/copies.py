# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab copies`: copies and memsets, with their bandwidth and source lines."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _trace_arguments as shared

HELP = "show copies and memsets: time, size and bandwidth by direction, kind of memory and line"
EXAMPLES = """\
  profiling-lab copies run.sqlite
  profiling-lab copies run.sqlite --by memory                 one row per kind of memory, lines below it
  profiling-lab copies run.sqlite --peak 55                   the peak bandwidth of your link, in GB/s
  profiling-lab copies nsys_export.sqlite --device 0 --format csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    parser.add_argument(
        "--by",
        choices=("line", "memory", "direction"),
        default="line",
        help="group by direction, kinds of memory and line (default), or by fewer of them",
    )
    parser.add_argument(
        "--peak",
        metavar="GB/S",
        type=_rate,
        help="peak bandwidth of the link between host and GPU (default: that of the standard for the GPU)",
    )
    shared.add_own(parser)
    shared.add_lines(parser)
    shared.add_limit(parser, 20)
    shared.add_window(parser)
    shared.add_format(parser)


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"expected GB/s, such as 55, not {text}")
    return value


def run(args: argparse.Namespace) -> int:
    from profiling_lab.report.table import write

    with shared.open_tables(args) as trace:
        write(trace.copies(args.by, peak=args.peak, lines=args.lines, limit=args.limit).report, args.format)
    return 0
