# SPDX-License-Identifier: Apache-2.0
"""Arguments shared by all commands that read a trace."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from profiling_lab.api import TraceTables
    from profiling_lab.trace import Trace


def add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace",
        metavar="FILE",
        help="a recording of profiling-lab, an nsys export (SQLite or a folder of Parquet files), "
        "torch.profiler's JSON, an XPlane file of JAX, or a database (rocpd) or JSON of rocprofv3",
    )


def add_format(parser: argparse.ArgumentParser, *more: str) -> None:
    parser.add_argument(
        "--format",
        choices=("table", "json", "csv", "md", *more),
        default="table",
        help="the output format (default: table)",
    )


def add_window(parser: argparse.ArgumentParser) -> None:
    """Add the options that select a part of the trace; `open_trace` opens it."""
    window = parser.add_argument_group("part of the trace", "several options select the intersection")
    window.add_argument(
        "--range",
        metavar="A:B",
        help="from A to B after the first event, such as 1.2s:1.35s or 350ms: (s, ms, us, ns)",
    )
    window.add_argument(
        "--step",
        metavar="N",
        help="step N, or steps A up to but not including B; the first is 0, negative numbers count from "
        "the end "
        "(--step=-2:); `profiling-lab steps` lists them",
    )
    window.add_argument(
        "--nvtx",
        metavar="NAME[@DOMAIN][/I]",
        help="the operations launched in ranges of this name: NVTX ranges, or operators and annotations of "
        "torch.profiler; NAME may be a regular expression for the whole name, I selects one of the ranges, "
        "from 0",
    )
    for what, help_text in (
        ("rank", "the process of this rank; may be given several times"),
        ("device", "this CUDA device of its process; may be given several times"),
    ):
        window.add_argument(
            f"--{what}", metavar=what[0].upper(), type=int, action="append", default=[], help=help_text
        )


def open_trace(args: argparse.Namespace, path: str | None = None) -> Trace:
    """The part of the trace that the options of `add_window` select. The default for `path` is `args.trace`,
    in which `check_own` looks.

    Use it as `with open_trace(args) as trace`. Raises what `Trace.open` and `Trace.windowed` raise.
    """
    from profiling_lab.trace import Trace
    from profiling_lab.trace.window import WindowSelection

    trace = Trace.open(args.trace if path is None else path)
    try:
        if path is None:
            check_own(args, [trace])
        return trace.windowed(
            WindowSelection(
                range=args.range,
                step=args.step,
                nvtx=args.nvtx,
                ranks=tuple(args.rank),
                devices=tuple(args.device),
                steps_by=getattr(args, "steps_by", None),
            )
        )
    except BaseException:
        trace.close()
        raise


def open_tables(args: argparse.Namespace) -> TraceTables:
    """The tables of that part. Use it as `with open_tables(args) as trace`."""
    from profiling_lab.api import TraceTables

    own, steps_by = getattr(args, "own", ()), getattr(args, "steps_by", None)
    return TraceTables(open_trace(args), own=own, steps_by=steps_by)


def add_steps_by(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps-by",
        metavar="REGEX",
        help="use ranges whose names match as steps (default: the first of these that exists: "
        "ProfilerStep, ranges "
        "named like a step, optimizer.step, the period of the launches, the whole trace)",
    )


def add_own(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--own",
        metavar="PATH",
        action="append",
        default=[],
        help="what counts as your code: only this file, folder or trailing part of a path; may "
        "be given several times (default: everything outside site-packages, the standard library and torch)",
    )


def check_own(args: argparse.Namespace, traces: Iterable[Trace]) -> None:
    """Raises UsageError if a path of --own names no file of any of these traces that have stacks."""
    from profiling_lab.analysis.own_files import check_own

    if not getattr(args, "totals", False):  # which reads no stacks
        check_own(getattr(args, "own", ()), traces)


def add_lines(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lines",
        metavar="N",
        type=_not_negative,
        default=2,
        help="show at most N lines of your program below each row, 0 for none (default: 2)",
    )


def add_limit(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "--limit",
        metavar="N",
        type=_not_negative,
        default=default,
        help=f"at most N rows, 0 for all (default: {default})",
    )


def positive(text: str) -> int:
    return _whole_number(text, 1, "a number of at least 1")


def _not_negative(text: str) -> int:
    return _whole_number(text, 0, "a number of at least 0")


def _whole_number(text: str, least: int, what: str) -> int:
    # int's own ValueError would make argparse name the function instead of what is expected.
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"expected {what}, not {text}")
    return value
