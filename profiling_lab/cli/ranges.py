# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab ranges`: NVTX ranges on the host and on the GPU."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _trace_arguments as shared

HELP = "show NVTX ranges (or operators): their time on the host and on the GPU"
EXAMPLES = """\
  profiling-lab ranges run.sqlite
  profiling-lab ranges run.sqlite --tree                      nested
  profiling-lab ranges trace.json.gz --merge-numbers          step 1, step 2, ... as one row
  profiling-lab ranges nsys_export.sqlite --rank 0 --format csv --limit 0
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    parser.add_argument("--tree", action="store_true", help="show nested ranges below the range around them")
    parser.add_argument(
        "--merge-numbers", action="store_true", help="merge names that differ only in numbers"
    )
    parser.add_argument(
        "--stats",
        action="store_true",
        help="also show average, minimum, maximum and standard deviation on the host",
    )
    shared.add_own(parser)
    shared.add_lines(parser)
    shared.add_limit(parser, 25)
    shared.add_window(parser)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.report.table import write

    with shared.open_tables(args) as trace:
        write(
            trace.ranges(
                tree=args.tree,
                merge_numbers=args.merge_numbers,
                stats=args.stats,
                lines=args.lines,
                limit=args.limit,
            ).report,
            args.format,
        )
    return 0
