# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab memory`: GPU memory by line and kind, its peak, growth, fragmentation."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _trace_arguments as shared

HELP = "show what holds GPU memory: the peak by line and by kind, growth from step to step, fragmentation"
EXAMPLES = """\
  profiling-lab record --memory -o run.sqlite train.py
  profiling-lab memory run.sqlite                      what was alive at the peak, by line
  profiling-lab memory run.sqlite --by kind            parameters, gradients, optimizer state, activations
  profiling-lab memory run.sqlite --at end             what is left at the end; also --at 1.5s
  profiling-lab memory run.sqlite --growth             which line holds more from step to step
  profiling-lab memory run.sqlite --timeline           allocated and reserved over time
  profiling-lab diff before.sqlite after.sqlite --memory    how the peaks of two recordings differ
  profiling-lab memory snapshot.pickle --format json   of torch.cuda.memory._dump_snapshot
  profiling-lab memory trace.json                      of torch.profiler with profile_memory=True

Sizes are those of the allocator's blocks, so they sum to torch.cuda.max_memory_allocated(). Nothing in a
pickle is executed: a file with anything but lists, dicts, numbers and texts is refused.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace",
        metavar="FILE",
        help="a recording of `profiling-lab record --memory`, a memory snapshot of torch (a pickle), or "
        "torch.profiler's JSON with profile_memory=True",
    )
    parser.add_argument(
        "--at",
        metavar="WHEN",
        default="peak",
        help="peak, end, or a time after the first event, such as 1.5s or 350ms (default: peak)",
    )
    parser.add_argument(
        "--by", choices=("line", "kind"), default="line", help="group by line (default) or by kind"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--growth", action="store_true", help="instead: what lines hold after each step")
    what.add_argument(
        "--timeline",
        metavar="N",
        nargs="?",
        const=40,
        type=shared.positive,
        help="instead: the most in each of N equal intervals (default: 40)",
    )
    shared.add_steps_by(parser)
    shared.add_own(parser)
    shared.add_lines(parser)
    shared.add_limit(parser, 20)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.api import open as open_tables
    from profiling_lab.report.table import write

    limit = args.limit or None
    with open_tables(args.trace, own=args.own, steps_by=args.steps_by) as trace:
        if args.growth:
            report = trace.memory_growth(limit=limit).report
        elif args.timeline is not None:
            report = trace.memory_timeline(args.timeline).report
        else:
            report = trace.memory(args.by, at=args.at, lines=args.lines, limit=limit).report
        write(report, args.format)
    return 0
