# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab kernels`: the most expensive kernels and the Python frames that launched them."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _trace_arguments as shared

HELP = "show the most expensive kernels and copies, each with the Python frames that launched it"
EXAMPLES = """\
  profiling-lab kernels run.sqlite
  profiling-lab kernels run.sqlite --depth 0                  no stacks
  profiling-lab kernels run.sqlite --stats --group-by grid    median and spread, a row per grid and block
  profiling-lab kernels run.sqlite --phases                   time in the call, in the queue, on the GPU
  profiling-lab kernels run.sqlite --occupancy                registers, shared memory, estimated occupancy
  profiling-lab kernels run.sqlite --limit 0 --format csv
  profiling-lab kernels huge.sqlite --totals                  only times and counts, several times faster
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    parser.add_argument(
        "--group-by",
        choices=("name", "short", "grid", "line", "shape"),
        default="name",
        help="one row per kernel with its full name (default), with its name without template arguments, or "
        "per kernel and grid and block, line, or operator with its input shapes",
    )
    parser.add_argument("--stats", action="store_true", help="also show median and standard deviation")
    parser.add_argument(
        "--phases",
        action="store_true",
        help="show the time in the launching call, in the queue and on the GPU",
    )
    parser.add_argument(
        "--occupancy",
        action="store_true",
        help="show grid, block, registers, shared memory, and an estimate of the occupancy",
    )
    parser.add_argument(
        "--totals",
        action="store_true",
        help="do not show what launched the kernels: calls and stacks, most of a large file, are not read",
    )
    shared.add_own(parser)
    parser.add_argument(
        "--depth", metavar="N", type=int, default=4, help="show N frames of each stack (default: 4)"
    )
    parser.add_argument(
        "--stacks",
        metavar="N",
        type=int,
        default=3,
        help="show N stacks below each kernel (default: 3)",
    )
    shared.add_limit(parser, 10)
    shared.add_window(parser)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.report.table import write

    with shared.open_tables(args) as trace:
        write(
            trace.kernels(
                args.group_by,
                stats=args.stats,
                phases=args.phases,
                occupancy=args.occupancy,
                totals=args.totals,
                stacks=args.stacks,
                depth=args.depth,
                limit=args.limit,
            ).report,
            args.format,
        )
    return 0
