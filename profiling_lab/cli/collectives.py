# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab collectives`: bytes, bandwidth, exposed time and lines of collectives."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _job as job
from profiling_lab.cli import _trace_arguments as shared

HELP = "show collectives: bytes, algorithm and bus bandwidth, what compute hides, and the lines behind them"
EXAMPLES = """\
  profiling-lab collectives run.sqlite                        by kind, group and line, the most exposed first
  profiling-lab collectives run.rank*.sqlite                  all ranks: who came last, bandwidth from then on
  profiling-lab collectives recordings/ --by collective --step 3
  profiling-lab collectives node.sqlite --by group --rank 0   one nsys export with several processes
  profiling-lab collectives trace.json.gz --by kind --format csv
  profiling-lab collectives recordings/ --links links.json    with what `profiling-lab interconnect` measured

bandwidths are those of nccl-tests; they need bytes and group size, which nsys has with --trace=cuda,nvtx and
`nsys export --include-blobs=true`; recordings of profiling-lab and torch.profiler have them
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    job.add_files(parser)
    parser.add_argument(
        "--by",
        choices=("line", "group", "kind", "collective"),
        default="line",
        help="group by kind, group of ranks and line (default), or by fewer of them; or show each collective",
    )
    parser.add_argument(
        "--links",
        metavar="FILE",
        help="also show what the links reach for the same messages: a file of `interconnect -o FILE`",
    )
    job.add_workers(parser)
    shared.add_steps_by(parser)
    shared.add_own(parser)
    shared.add_lines(parser)
    shared.add_limit(parser, 20)
    shared.add_window(parser)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from profiling_lab.analysis.collectives import collectives
    from profiling_lab.analysis.collectives.links import load
    from profiling_lab.analysis.ranks.reading import files_of
    from profiling_lab.report.ranks.collectives import collectives_report
    from profiling_lab.report.table import write

    links = load(Path(args.links)) if args.links else None
    files = files_of(args.traces)
    with job.workers(args, len(files)) as (pool, done):
        result = collectives(
            files,
            args.by,
            job.options(args),
            args.limit or None,
            pool,
            done,
            tuple(args.rank),
            tuple(args.device),
            links,
        )
    status = job.exit_code("collectives", result.failures)
    write(collectives_report(result, args.lines), args.format)
    return status
