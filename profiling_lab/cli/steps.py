# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab steps`: the time of each step by kind of activity."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _trace_arguments as shared

HELP = "show the time of each step: compute, communication, copies, idle"
EXAMPLES = """\
  profiling-lab steps run.sqlite
  profiling-lab steps run.sqlite --steps-by '^epoch'          use your own ranges as steps
  profiling-lab steps run.sqlite --host --step 3:             also host activity, without the first steps
  profiling-lab steps trace.json.gz --limit 0 --format csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    parser.add_argument(
        "--host",
        action="store_true",
        help="eight parts instead of four: also what the host did while the GPU was idle",
    )
    shared.add_steps_by(parser)
    shared.add_window(parser)
    shared.add_limit(parser, 50)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.report.table import write

    with shared.open_tables(args) as trace:
        write(trace.steps(host=args.host, limit=args.limit).report, args.format)
    return 0
