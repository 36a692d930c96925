# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab ranks`: compare the ranks of one job."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from profiling_lab.cli import _trace_arguments as shared

if TYPE_CHECKING:
    from profiling_lab.analysis.ranks import JobResult, Pool
    from profiling_lab.analysis.ranks.pools import Done

HELP = (
    "compare the ranks of a job: the straggler of each collective, what it costs, and the line that is late"
)
EXAMPLES = """\
  profiling-lab ranks recordings/                             a folder with a file per rank
  profiling-lab ranks run.rank*.sqlite --by collective        the last rank, waiting and transfer time
  profiling-lab ranks node.sqlite --by line                   one nsys export with several processes
  profiling-lab ranks recordings/ --rank 0 --rank 7 --step 2:
  profiling-lab ranks recordings/ --dask local                on a Dask cluster; or --dask tcp://head:8786

record one file per rank with `profiling-lab record -o run.sqlite torchrun --nproc-per-node 8 train.py`
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "traces",
        metavar="FILE",
        nargs="+",
        help="recordings of one job, or a folder of them; a file may hold several processes",
    )
    parser.add_argument(
        "--by",
        choices=("rank", "collective", "step", "line"),
        default="rank",
        help="group by (default: rank)",
    )
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=shared.positive,
        help="number of processes that read files (default: one per CPU, at most one per file)",
    )
    parser.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="read the files on the workers of this Dask scheduler, which must see the same paths, or on "
        "a local cluster: local",
    )
    shared.add_steps_by(parser)
    shared.add_own(parser)
    shared.add_limit(parser, 64)
    shared.add_window(parser)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    import sys

    from profiling_lab.analysis.ranks import Options, ranks
    from profiling_lab.analysis.ranks.reading import files_of
    from profiling_lab.errors import UsageError
    from profiling_lab.report.ranks import ranks_report
    from profiling_lab.report.table import write
    from profiling_lab.trace.window import WindowSelection

    window = WindowSelection(range=args.range, step=args.step, nvtx=args.nvtx, steps_by=args.steps_by)
    options = Options(args.steps_by, tuple(args.own), window or None)
    files = files_of(args.traces)
    with _pool(args.dask, args.jobs) as pool, _progress(len(files)) as done:
        result = ranks(files, options, pool, done, tuple(args.rank), tuple(args.device))
    if args.own and not any(row.facts.attributed_ns for row in result.rows):
        raise UsageError(f"--own {', '.join(args.own)}: no line of the recordings is there")
    for failure in result.failures:
        print(f"profiling-lab ranks: {failure.sentence}", file=sys.stderr)
    write(ranks_report(result, args.by, args.limit or None), args.format)
    return _exit_code(result)


def _exit_code(result: JobResult) -> int:
    """The exit code of the worst file, if one could not be used; the output is about the other files."""
    return max((failure.exit_code for failure in result.failures), default=0)


@contextmanager
def _pool(address: str | None, jobs: int | None) -> Iterator[Pool]:
    from profiling_lab.analysis.ranks.pools import LocalPool, dask_pool

    if address is None:
        yield LocalPool(jobs)
        return
    with dask_pool(address, jobs) as pool:
        yield pool


@contextmanager
def _progress(files: int) -> Iterator[Done]:
    """A progress bar on standard error while files are read; nothing if it is not a terminal."""
    import sys

    if not sys.stderr.isatty() or files < 2:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading files", total=files)
        yield lambda count: bar.update(task, completed=count)
