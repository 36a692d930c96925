# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab gaps`: why the GPU was idle."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _trace_arguments as shared

HELP = "show why the GPU was idle: every piece of idle time with its cause and line"
EXAMPLES = """\
  profiling-lab gaps run.sqlite
  profiling-lab gaps run.sqlite --steps-by '^epoch'           idle time per epoch
  profiling-lab gaps run.sqlite --by gap --step 3             the longest gaps of one step
  profiling-lab gaps trace.json.gz --own train.py --format json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    parser.add_argument(
        "--by",
        choices=("cause", "gap"),
        default="cause",
        help="one row per cause and line (default), or per gap, the longest first",
    )
    shared.add_steps_by(parser)
    shared.add_window(parser)
    shared.add_own(parser)
    shared.add_limit(parser, 15)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.report.table import write

    with shared.open_tables(args) as trace:
        write(trace.gaps(args.by, limit=args.limit).report, args.format)
    return 0
