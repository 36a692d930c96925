# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab counters`: sampled hardware counters by line."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _trace_arguments as shared

HELP = "show memory traffic, and how busy SMs and tensor pipe are, by line, from sampled hardware counters"
EXAMPLES = """\
  profiling-lab record --counters -o run.sqlite train.py
  profiling-lab counters run.sqlite
  profiling-lab counters run.sqlite --format json       with the error of each amount

The GPU notes its counters every 100 us while the program runs as always: no replay. What a line had of them
is fitted to thousands of samples; what they do not tell is shown as -.
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
        write(trace.counters(limit=args.limit).report, args.format)
    return 0
