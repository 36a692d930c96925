# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab critical-path`: what sets the length of a step, and what a change would win."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _trace_arguments as shared

HELP = "show what sets a step's length, by line: host code, launches, kernels, waits; and predict changes"
EXAMPLES = """\
  profiling-lab critical-path run.sqlite                         the step of median length, by line
  profiling-lab critical-path run.sqlite --step 3 --segments     the chain of step 3, its longest links
  profiling-lab critical-path run.sqlite --what-if model.py:87=0.5
  profiling-lab critical-path run.sqlite --what-if all           what a step gains without each line
  profiling-lab critical-path trace.json.gz --what-if 'gemm|cutlass=0.5' --what-if copy=0

a factor of 0 is a line that is gone, with its waits; targets are lines, patterns for names of
kernels and calls, and kinds: kernel, copy, collective, "host code", "launch call", "garbage collection" ..
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    shows = parser.add_mutually_exclusive_group()
    shows.add_argument("--segments", action="store_true", help="show the path in order of time")
    shows.add_argument(
        "--what-if",
        metavar="LINE=FACTOR",
        action="append",
        default=[],
        help="predict the step if this line, kernel or kind took FACTOR of its time; may be given several "
        "times; `all`: without each of the lines of the path",
    )
    shared.add_steps_by(parser)
    shared.add_window(parser)
    shared.add_own(parser)
    shared.add_limit(parser, 15)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.report.table import write

    with shared.open_tables(args) as trace:
        table = trace.critical_path(segments=args.segments, what_if=args.what_if, limit=args.limit)
        write(table.report, args.format)
    return 0
