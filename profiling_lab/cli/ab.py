# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab ab`: record two programs in turns, and say whether the second is faster."""

from __future__ import annotations

import argparse
from signal import SIGINT
from typing import TYPE_CHECKING

from profiling_lab.cli import _trace_arguments as shared
from profiling_lab.cli.diff import add_judging, exit_code

if TYPE_CHECKING:
    from profiling_lab.analysis.diff.diff import DiffResult
    from profiling_lab.analysis.diff.outputs import Compared, OutputCheck
    from profiling_lab.cli._ab_runs import Recorded
    from profiling_lab.report.diff.ab import Ratio

HELP = "record two programs, or two versions of one, in turns, and say by line whether the second is faster"
EXAMPLES = """\
  profiling-lab ab -- train.py --heavy slow ::: train.py --heavy fast
  profiling-lab ab --git HEAD~1 -- train.py --epochs 1       that commit (A) against the files as they are (B)
  profiling-lab ab --runs 8 --gate 2% -- train.py ::: train.py --compile
  profiling-lab ab --same 'loss (\\S+)' --rtol 1e-3 -- train.py ::: train.py --bf16
  profiling-lab ab --record='--steps 10:60 --no-samples' -- -m app.train ::: -m app.train --fast
  profiling-lab ab -- torchrun --nproc-per-node 2 train.py ::: torchrun --nproc-per-node 2 train.py --overlap
  profiling-lab ab -- env NCCL_ALGO=Ring python train.py ::: env NCCL_ALGO=Tree python train.py
  profiling-lab ab --keep cmp -- a.py ::: b.py                keep the recordings; if it was interrupted:
  profiling-lab ab --keep cmp --continue -- a.py ::: b.py

A and B are what `record` accepts: a script, -m MODULE, or a program. They run in turns, A B B A A B, each run
in processes of its own, without standard input, in the same folder: a program that continues from what an
earlier run left there does other work. A run that fails ends the comparison; its output is shown.

With --git, A runs in a temporary worktree of git, which is removed at the end. Your working tree is not
touched. Files that git does not track are missing there, unless --link names them.

exit codes: 0 B is not slower (with --gate: not by more), 1 B is slower, fails, or prints something else,
2 usage, 3 not comparable, too few steps or within the noise of a gate (--lenient: 0), or A fails,
4 no such script
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs",
        metavar="N",
        type=shared.positive,
        default=5,
        help="how often each program runs (default: 5); of programs without steps at least 4",
    )
    parser.add_argument("--git", metavar="COMMIT", help="A is the program at this commit, B as it is now")
    parser.add_argument(
        "--link",
        metavar="PATH",
        action="append",
        default=[],
        help="with --git: a file or folder that git does not track, such as data/, that A needs too; may be "
        "given several times",
    )
    parser.add_argument(
        "--same",
        metavar="REGEX",
        action="append",
        default=[],
        help="what this finds in the output (its groups, if it has some) must be the same in all runs; may "
        "be given several times",
    )
    parser.add_argument(
        "--same-stdout", action="store_true", help="all of the standard output must be the same in all runs"
    )
    for name in ("rtol", "atol"):
        what = "a share of the value" if name == "rtol" else "so much"
        parser.add_argument(
            f"--{name}",
            metavar="X",
            type=tolerance,
            default=0.0,
            help=f"numbers in the output may differ by {what} (default: 0)",
        )
    parser.add_argument(
        "--record",
        metavar="OPTIONS",
        default="",
        help="options of `record` for both sides, as in --record='--steps 10:60 --no-samples'",
    )
    parser.add_argument(
        "--whole", action="store_true", help="compare whole runs, from the first GPU operation to the last"
    )
    parser.add_argument("--keep", metavar="DIR", help="keep the recordings and outputs in this new folder")
    parser.add_argument(
        "--continue", dest="go_on", action="store_true", help="go on with what is in the folder of --keep"
    )
    add_judging(parser)
    shared.add_steps_by(parser)
    shared.add_own(parser)
    shared.add_limit(parser, 20)
    shared.add_format(parser)
    parser.add_argument(
        "programs",
        metavar="-- A ::: B",
        nargs=argparse.REMAINDER,
        help="the two programs with their arguments; with --git one is enough",
    )


def tolerance(text: str) -> float:
    from math import isfinite

    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, not {text}")
    return value


def run(args: argparse.Namespace) -> int:
    from profiling_lab.analysis.diff.outputs import compare_outputs
    from profiling_lab.analysis.diff.verdict import parse_budget, parse_limit
    from profiling_lab.cli._ab_runs import recorded_in_turns
    from profiling_lab.cli._ab_sides import sides_of
    from profiling_lab.recording.turns.process import Stopped
    from profiling_lab.report.diff.ab import Side, ab_report
    from profiling_lab.report.table import write

    # What is wrong with the arguments is said before minutes of runs.
    wanted, sides = _wanted(args), sides_of(args)
    parse_limit(args.gate or "0%")
    for budget in args.budget:
        parse_budget(budget)
    try:
        with recorded_in_turns(args, sides) as recorded:
            outputs = compare_outputs(recorded.outputs("a"), recorded.outputs("b"), wanted)
            result, notes = _compare(args, recorded)
    except Stopped as stopped:
        if stopped.number == SIGINT:  # this process dies of it, as without us
            raise KeyboardInterrupt from None
        return 128 + stopped.number
    report = ab_report(
        result,
        (
            Side(sides.shown[0], recorded.commit, recorded.seconds("a")),
            Side(sides.shown[1], "", recorded.seconds("b")),
        ),
        outputs,
        _ratio(result),
        (*recorded.notes, *notes),
        args.limit or None,
        args.keep or "",
    )
    write(report, args.format)
    return _exit_code(args, result, outputs)


def _wanted(args: argparse.Namespace) -> OutputCheck:
    import re

    from profiling_lab.analysis.diff.outputs import OutputCheck
    from profiling_lab.errors import UsageError

    patterns = []
    for text in args.same:
        try:
            patterns.append(re.compile(text))
        except re.error as error:
            raise UsageError(f"--same expects a regular expression, not {text!r}: {error}") from None
    if (args.rtol or args.atol) and not (patterns or args.same_stdout):
        raise UsageError("--rtol and --atol need --same or --same-stdout, which say what is compared")
    return OutputCheck(tuple(patterns), args.same_stdout, args.rtol, args.atol)


def _compare(args: argparse.Namespace, recorded: Recorded) -> tuple[DiffResult, list[str]]:
    """The result of `diff`, and notes. Where no steps can be compared, whole runs are."""
    from profiling_lab.analysis.diff.diff import diff

    def compared(whole: bool) -> DiffResult:
        return diff(
            recorded.captures("a", whole),
            recorded.captures("b", whole),
            by=args.by,
            own=tuple(args.own),
            steps_by=args.steps_by,
            gate=args.gate,
            budgets=args.budget,
            allow=args.allow,
        )

    result = compared(args.whole)
    steps = next(check for check in result.checks if check.name == "steps")
    signs = {capture.origin.sign for capture in (*result.captures_before, *result.captures_after)}
    # The marks of a program say that it does another number of steps; a period in launches may be a layer.
    if args.whole or not steps.refuses or (len(signs) == 1 and signs != {"period"}):
        return result, []
    found = f"{steps.before} in A, {steps.after} in B"
    return compared(True), [f"whole runs are compared, as their steps do not fit: {found}"]


def _ratio(result: DiffResult) -> Ratio | None:
    """None with too few pairs of runs for an interval."""
    from profiling_lab.analysis.diff.noise import MIN_STEPS, median_ns
    from profiling_lab.measure import Timing, ratio, ratio_interval
    from profiling_lab.report.diff.ab import Ratio

    a, b = (
        Timing(name, tuple(median_ns(capture.step_ns) for capture in captures))
        for name, captures in (("a", result.captures_before), ("b", result.captures_after))
    )
    if a.n < MIN_STEPS or not all(a.samples_ns):
        return None
    return Ratio(a.n, ratio(b, a), *ratio_interval(b, a))


def _exit_code(args: argparse.Namespace, result: DiffResult, outputs: Compared) -> int:
    """Without a gate any slowdown beyond the noise is a regression."""
    from profiling_lab.errors import NotEnoughDataError

    code = exit_code(result, args.lenient)
    is_slower = result.comparable and result.state == "slower" and not args.gate
    if code == 1 or is_slower or outputs.state == "differ":
        return 1
    if outputs.state == "undecided" or result.state == "undecided":
        return NotEnoughDataError.exit_code
    return code
