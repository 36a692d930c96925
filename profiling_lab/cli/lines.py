# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab lines`: GPU time per line of Python, forward and backward; host time from samples."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _trace_arguments as shared

HELP = "show GPU time per line of your Python code: forward, backward, recomputed, optimizer"
EXAMPLES = """\
  profiling-lab lines run.sqlite
  profiling-lab lines run.sqlite --by function --phase backward
  profiling-lab lines run.sqlite --tree                       call tree, with the time of callees
  profiling-lab lines run.sqlite --depth 2                    separate rows per caller
  profiling-lab lines run.sqlite --sort inclusive             includes lines that only call others
  profiling-lab lines run.sqlite --by layer                   the nn.Module that the line ran in
  profiling-lab lines run.sqlite --own src/model --own train.py
  profiling-lab lines nsys_export.sqlite --by range           NVTX ranges, if there are no Python stacks
  profiling-lab lines run.sqlite --host                       host time, from samples: needs no GPU
  profiling-lab lines run.sqlite --format json --limit 0
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    parser.add_argument(
        "--by",
        choices=("line", "function", "file", "module", "layer", "instance", "kernel", "range"),
        help="group by (default: line); module is the class whose forward ran in your code, layer the "
        "nn.Module with its parents, including those of libraries (instance: each one), range an NVTX range",
    )
    parser.add_argument(
        "--phase",
        choices=("forward", "backward", "recompute", "optimizer", "all"),
        default="all",
        help="recompute is forward computed again in backward (activation checkpointing), forward everything "
        "else (default: all)",
    )
    parser.add_argument(
        "--sort",
        choices=("all", "forward", "backward", "recompute", "optimizer", "inclusive", "kernels", "key"),
        help="by the time of all phases (default) or of one, by the time including callees, by "
        "the number of kernels, or in the order of the code",
    )
    parser.add_argument(
        "--tree",
        action="store_true",
        help="show a call tree of your code, each call with the time of its callees",
    )
    parser.add_argument(
        "--host",
        action="store_true",
        help="show host time instead, from samples of the Python stacks of all threads (record "
        "--sample-python takes them); needs no GPU operation",
    )
    parser.add_argument(
        "--min-share",
        metavar="PERCENT",
        type=_percent,
        help="with --tree, hide calls with a smaller share of its GPU time (default: 0.5)",
    )
    shared.add_own(parser)
    parser.add_argument(
        "--depth",
        metavar="N",
        type=shared.positive,
        help="group by the N innermost of your frames: 1 the line, 2 the line and its caller (default: 1); "
        "with --tree, how many levels are shown (default: all)",
    )
    shared.add_limit(parser, 30)
    shared.add_window(parser)
    shared.add_format(parser)


def _percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"expected 0 to 100, not {text}")
    return value / 100


def run(args: argparse.Namespace) -> int:
    from profiling_lab.errors import UsageError
    from profiling_lab.report.table import write

    for of_tree, option in ((False, "by"), (False, "sort"), (True, "min_share")):
        if args.tree != of_tree and getattr(args, option) is not None:
            with_tree = "works only" if of_tree else "cannot be combined"
            raise UsageError(f"--{option.replace('_', '-')} {with_tree} with --tree")
    if args.host:
        for option in ("phase", "tree"):
            if getattr(args, option) not in ("all", False):
                raise UsageError(f"--{option} cannot be combined with --host: samples are of the host")
        if args.device:
            raise UsageError("--device cannot be combined with --host: samples belong to no device")
    asked = {"depth": args.depth, "limit": args.limit} | ({} if args.host else {"phase": args.phase})
    asked |= {
        name: given for name in ("by", "sort", "min_share") if (given := getattr(args, name)) is not None
    }
    with shared.open_tables(args) as trace:
        call = trace.host_lines if args.host else trace.call_tree if args.tree else trace.lines
        write(call(**asked).report, args.format)
    return 0
