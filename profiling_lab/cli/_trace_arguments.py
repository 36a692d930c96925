# SPDX-License-Identifier: Apache-2.0
"""Arguments that every command over a trace shares."""

from __future__ import annotations

import argparse


def add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace",
        metavar="FILE",
        help="a recording of ours, an nsys export (SQLite), or torch.profiler's JSON",
    )


def add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=("table", "json", "csv", "md"),
        default="table",
        help="how to print it (default: table)",
    )


def add_nvtx(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nvtx",
        metavar="REGEX",
        help="the ranges whose names match are the steps (default: ProfilerStep, ranges named like a step, "
        "optimizer.step, the period of the launches, or all as one: the first that there is)",
    )


def add_own(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--own",
        metavar="PATH",
        action="append",
        default=[],
        help="what counts as your code: this file, folder or trailing part of a path, and nothing else; may "
        "be given several times (default: what is not in site-packages, the standard library or torch)",
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
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 up, not {text}")
    return value


def _not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected 0 or more, not {text}")
    return value
