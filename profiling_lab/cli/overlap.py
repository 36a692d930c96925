# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab overlap`: which operations of the GPU overlap."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _trace_arguments as shared

HELP = "show how copies, compute and communication overlap, and how busy the streams are"
EXAMPLES = """\
  profiling-lab overlap run.sqlite                            by class: hidden behind compute, and exposed
  profiling-lab overlap run.sqlite --by stream
  profiling-lab overlap run.sqlite --by pair --step 3         which kernels overlapped in step 3
  profiling-lab overlap run.sqlite --format json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    parser.add_argument(
        "--by",
        choices=("class", "stream", "pair"),
        default="class",
        help="one row per class of operations (compute, communication, copies by direction), per stream, "
        "or per pair of operations of different streams that overlapped",
    )
    shared.add_limit(parser, 30)
    shared.add_window(parser)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.report.table import write

    with shared.open_tables(args) as trace:
        write(trace.overlap(args.by, limit=args.limit).report, args.format)
    return 0
