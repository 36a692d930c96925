# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab ranks`: compare the ranks of one job."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _job as job
from profiling_lab.cli import _trace_arguments as shared

HELP = "compare the ranks of a job: which rank and line holds the step up, and what mending that would save"
EXAMPLES = """\
  profiling-lab ranks recordings/                             a folder with a file per rank
  profiling-lab ranks run.rank*.sqlite --by collective        the last rank, waiting and transfer time
  profiling-lab ranks recordings/ --by path                   what sets the step, by rank and line
  profiling-lab ranks node.sqlite --by line                   one nsys export with several processes
  profiling-lab ranks recordings/ --rank 0 --rank 7 --step 2:
  profiling-lab ranks recordings/ --dask local                on a Dask cluster; or --dask tcp://head:8786

record one file per rank with `profiling-lab record -o run.sqlite torchrun --nproc-per-node 8 train.py`
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    job.add_files(parser)
    parser.add_argument(
        "--by",
        choices=("rank", "collective", "step", "line", "path"),
        default="rank",
        help="group by (default: rank)",
    )
    job.add_workers(parser)
    shared.add_steps_by(parser)
    shared.add_own(parser)
    shared.add_limit(parser, 64)
    shared.add_window(parser)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.analysis.ranks import ranks
    from profiling_lab.analysis.ranks.reading import files_of
    from profiling_lab.report.ranks.ranks import ranks_report
    from profiling_lab.report.table import write

    files = files_of(args.traces)
    with job.workers(args, len(files)) as (pool, done):
        result = ranks(files, job.options(args), pool, done, tuple(args.rank), tuple(args.device))
    status = job.exit_code("ranks", result.failures)
    write(ranks_report(result, args.by, args.limit or None), args.format)
    return status
