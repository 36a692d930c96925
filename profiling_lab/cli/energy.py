# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab energy`: joules per step and by line."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _trace_arguments as shared

HELP = "show the joules of each step and line, with error bars, and what limited power and clocks"
EXAMPLES = """\
  profiling-lab record --energy -o run.sqlite train.py
  profiling-lab energy run.sqlite
  profiling-lab energy run.sqlite --samples-per-step 64        joules per sample as well
  profiling-lab record --energy --work -o run.sqlite train.py  for TFLOP/s per watt as well

The GPU's energy counter changes every 20 to 100 ms. Power by line is fitted to many of its intervals, so a
recording of minutes tells more than one of seconds. A line that it cannot tell has no energy, not none.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    parser.add_argument(
        "--samples-per-step",
        metavar="N",
        type=shared.positive,
        help="also say the joules of a sample, where a step works on N",
    )
    shared.add_steps_by(parser)
    shared.add_own(parser)
    shared.add_limit(parser, 20)
    shared.add_window(parser)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.report.table import write

    with shared.open_tables(args) as trace:
        table = trace.energy(samples_per_step=args.samples_per_step, limit=args.limit)
        write(table.report, args.format)
    return 0
