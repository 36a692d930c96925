# SPDX-License-Identifier: Apache-2.0
"""Arguments and workers shared by the commands that read the files of a job."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from profiling_lab.cli import _trace_arguments as shared

if TYPE_CHECKING:
    from profiling_lab.analysis.ranks import Options, Pool
    from profiling_lab.analysis.ranks.pools import Done
    from profiling_lab.analysis.ranks.reading import Failure
    from profiling_lab.analysis.ranks.summary import RankFacts


def add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "traces",
        metavar="FILE",
        nargs="+",
        help="recordings of one job, or a folder of them; a file may hold several processes",
    )


def add_workers(parser: argparse.ArgumentParser) -> None:
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


def options(args: argparse.Namespace) -> Options:
    """What is asked of every file."""
    from profiling_lab.analysis.ranks import Options
    from profiling_lab.trace.window import WindowSelection

    window = WindowSelection(range=args.range, step=args.step, nvtx=args.nvtx, steps_by=args.steps_by)
    return Options(args.steps_by, tuple(args.own), window or None)


@contextmanager
def workers(args: argparse.Namespace, files: int) -> Iterator[tuple[Pool, Done]]:
    """The pool that reads the files, and what to call as they are read."""
    with _pool(args.dask, args.jobs) as pool, _progress(files) as done:
        yield pool, done


def check_own(args: argparse.Namespace, ranks: Sequence[RankFacts]) -> None:
    """Raises UsageError if --own was given and no rank has a line there."""
    from profiling_lab.errors import UsageError

    if args.own and not any(facts.attributed_ns for facts in ranks):
        raise UsageError(f"--own {', '.join(args.own)}: no line of the recordings is there")


def exit_code(command: str, failures: Sequence[Failure]) -> int:
    """Name the files that could not be used. The exit code is that of the worst; the output is about the
    others.
    """
    import sys

    for failure in failures:
        print(f"profiling-lab {command}: {failure.sentence}", file=sys.stderr)
    return max((failure.exit_code for failure in failures), default=0)


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
