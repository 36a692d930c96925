# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab syncs`: where the host waits for the GPU, and what it costs."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _trace_arguments as shared

HELP = "show where the host synchronises with the GPU, by line, and the GPU's idle time afterwards"
EXAMPLES = """\
  profiling-lab syncs run.sqlite
  profiling-lab syncs run.sqlite --own train.py --limit 0
  profiling-lab syncs run.sqlite --step 2: --format json      without the first steps
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    shared.add_own(parser)
    shared.add_limit(parser, 20)
    shared.add_window(parser)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.report.table import write

    with shared.open_tables(args) as trace:
        write(trace.syncs(limit=args.limit).report, args.format)
    return 0
