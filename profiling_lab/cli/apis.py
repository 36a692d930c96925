# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab apis`: CUDA API calls, and the phases of kernel launches."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _trace_arguments as shared

HELP = "show the time in CUDA API calls, by function, with the lines that made them"
EXAMPLES = """\
  profiling-lab apis run.sqlite
  profiling-lab apis run.sqlite --lines 5                     five lines below each call
  profiling-lab apis run.sqlite --launch                      time in the call, in the queue, on the GPU
  profiling-lab apis nsys_export.sqlite --rank 1 --step 2:5 --format csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    parser.add_argument(
        "--launch",
        action="store_true",
        help="kernels by the call and thread that launched them: time in the call, between call and "
        "kernel, and in the kernel",
    )
    shared.add_own(parser)
    shared.add_lines(parser)
    shared.add_limit(parser, 20)
    shared.add_window(parser)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.report.table import write

    with shared.open_tables(args) as trace:
        table = trace.launches if args.launch else trace.apis
        write(table(lines=args.lines, limit=args.limit).report, args.format)
    return 0
