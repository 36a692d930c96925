# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab streams`: the activity of each stream of each device."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _trace_arguments as shared

HELP = "show the streams of each GPU: busy, idle and overlapped time, and the lines that launch into them"
EXAMPLES = """\
  profiling-lab streams run.sqlite
  profiling-lab streams run.sqlite --lines 5 --device 0
  profiling-lab streams nsys_export.sqlite --format json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    shared.add_own(parser)
    shared.add_lines(parser)
    shared.add_limit(parser, 30)
    shared.add_window(parser)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.report.table import write

    with shared.open_tables(args) as trace:
        write(trace.streams(lines=args.lines, limit=args.limit).report, args.format)
    return 0
