# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab lines`: GPU time per line of Python, forward and backward."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _trace_arguments as shared

HELP = "show GPU time per line of your Python code, forward and backward"
EXAMPLES = """\
  profiling-lab lines run.sqlite
  profiling-lab lines run.sqlite --by function --phase backward
  profiling-lab lines run.sqlite --depth 2                    tell apart who called the line
  profiling-lab lines run.sqlite --own src/model --own train.py
  profiling-lab lines nsys_export.sqlite --by range           NVTX ranges, where there are no Python stacks
  profiling-lab lines run.sqlite --format json --limit 0
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    parser.add_argument(
        "--by",
        choices=("line", "function", "file", "module", "kernel", "range"),
        default="line",
        help="what a row is (default: line); module is the nn.Module whose forward ran, range an NVTX range",
    )
    parser.add_argument(
        "--phase",
        choices=("forward", "backward", "all"),
        default="all",
        help="forward is everything outside of backward, the optimizer too (default: all)",
    )
    shared.add_own(parser)
    parser.add_argument(
        "--depth",
        metavar="N",
        type=shared.positive,
        help="how many of your frames tell rows apart: 1 the line, 2 the line and its caller (default: 1)",
    )
    shared.add_limit(parser, 30)
    shared.add_window(parser)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.report.lines import lines_report
    from profiling_lab.report.table import write
    from profiling_lab.trace.lines import lines

    with shared.open_trace(args) as trace:
        result = lines(trace, args.by, args.phase, tuple(args.own), args.depth, args.limit or None)
        write(lines_report(trace, result), args.format)
    return 0
