# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab diff`: compare recordings from before a change with recordings from after it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from profiling_lab.cli import _trace_arguments as shared

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from profiling_lab.analysis.diff.diff import DiffResult
    from profiling_lab.analysis.diff.measure import Capture
    from profiling_lab.analysis.diff.memory import MemoryLimit
    from profiling_lab.analysis.diff.verdict import LimitResult
    from profiling_lab.trace import Trace

HELP = "compare recordings from before and after a change, line by line, taking noise into account"
EXAMPLES = """\
  profiling-lab diff before.sqlite after.sqlite
  profiling-lab diff before.sqlite after.sqlite --gate 3%             exit code 1 if the step got slower
  profiling-lab diff --before b1.sqlite b2.sqlite --after a1.sqlite a2.sqlite    several recordings of each
  profiling-lab diff b1.sqlite,b2.sqlite a1.sqlite,a2.sqlite          the same, shorter
  profiling-lab diff --save main.json run.sqlite                      a small baseline file for CI
  profiling-lab diff main.json run.sqlite --save main.json --overwrite    and the next one
  profiling-lab diff a.sqlite b.sqlite --journal turns.jsonl --note "pinned memory"   a record of each turn
  profiling-lab diff main.json pr.sqlite --gate 3% --format junit > diff.xml
  profiling-lab diff main.sqlite pr.sqlite --budget 'line:model.py:87<3ms' --budget 'gaps<5%'
  profiling-lab diff main.sqlite pr.sqlite --format md --annotate > comment.md
  profiling-lab diff before.sqlite after.sqlite --memory              what was alive at the peak, by line
  profiling-lab diff main.json pr.sqlite --gate 3% --gate-memory 5%   exit code 1 if the peak grew, too

exit codes: 0 every gate and budget is met, 1 at least one is exceeded, 3 undecided: not comparable, too few
steps for a limit, no memory recorded for its gate, or a limit within the noise (--lenient: 0)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "traces",
        metavar="FILE",
        nargs="*",
        help="two: before and after the change; each may be a baseline, or recordings separated by commas",
    )
    for side in ("before", "after"):
        parser.add_argument(
            f"--{side}",
            metavar="FILE",
            action="extend",
            nargs="+",
            default=[],
            help=f"recordings from {side} the change",
        )
    parser.add_argument(
        "--save",
        metavar="FILE.json",
        help="save the data of the side after as a baseline for later comparisons; needs only one side",
    )
    parser.add_argument("--overwrite", action="store_true", help="with --save: replace the file if it exists")
    parser.add_argument(
        "--journal",
        metavar="FILE.jsonl",
        help="append what came out to this file, a line of JSON for each turn, dropped changes too",
    )
    parser.add_argument("--note", metavar="TEXT", default="", help="with --journal: what was changed")
    add_judging(parser)
    parser.add_argument(
        "--memory",
        action="store_true",
        help="compare the peaks of GPU memory instead, and what was alive at them; needs recordings of "
        "`record --memory`, snapshots of torch, or torch.profiler's JSON with profile_memory=True",
    )
    parser.add_argument(
        "--gate-memory",
        metavar="LIMIT",
        help="fail if the peak of GPU memory grew by more than this: 5%% of it, or a size such as 512MiB",
    )
    shared.add_steps_by(parser)
    parser.add_argument(
        "--annotate",
        action="store_true",
        help="also write the annotations of --format github (`::warning file=,line=::` for slower lines) on "
        "standard error, so that CI shows them and the comment of --format md does not contain them",
    )
    shared.add_own(parser)
    shared.add_window(parser)
    shared.add_limit(parser, 20)
    shared.add_format(parser, "github", "junit")


def add_judging(parser: argparse.ArgumentParser) -> None:
    """Limits, what may differ, and what a row is."""
    parser.add_argument(
        "--gate",
        metavar="LIMIT",
        help="fail if the median step got slower by more than this: 3%% of it, or a time such as 2ms",
    )
    parser.add_argument(
        "--budget",
        metavar="WHAT<LIMIT",
        action="append",
        default=[],
        help="fail if this takes more per step after the change: step, gpu, idle, line:FILE:LINE, "
        "function:NAME or kernel:NAME; may be given several times",
    )
    parser.add_argument(
        "--lenient",
        action="store_true",
        help="exit code 0 if a gate or budget is within the noise and cannot be decided (default: 3)",
    )
    parser.add_argument(
        "--allow",
        metavar="CHECK",
        action="append",
        default=[],
        help="compare even if this differs: gpu, driver, method, window, steps, workload, shapes, overhead",
    )
    parser.add_argument(
        "--by",
        choices=("line", "function", "operator", "kernel"),
        default="line",
        help="what a row is (default: line)",
    )


def run(args: argparse.Namespace) -> int:
    import sys
    from contextlib import ExitStack
    from pathlib import Path

    from profiling_lab.analysis.diff.diff import diff
    from profiling_lab.report.diff import journal
    from profiling_lab.report.diff.data import workflow_warnings
    from profiling_lab.report.diff.diff import diff_report
    from profiling_lab.report.diff.junit import junit
    from profiling_lab.report.table import write
    from profiling_lab.trace import Trace

    before, after = _sides(args)
    if args.save:
        _refuse_to_replace(args, (*before, *after))
    _check_journal(args, before)
    with ExitStack() as opened:
        sides = [_opened(args, before, opened), _opened(args, after, opened)]
        traces = [side for side in (*sides[0], *sides[1]) if isinstance(side, Trace)]
        if len(traces) == len(sides[0]) + len(sides[1]):  # a baseline was checked when it was saved
            shared.check_own(args, traces)
        if not before:
            return _save(args, sides[1])
        if args.memory:
            return _memory(args, *sides)
        result = diff(
            *sides,
            by=args.by,
            own=tuple(args.own),
            steps_by=args.steps_by,
            gate=args.gate,
            gate_memory=args.gate_memory,
            budgets=args.budget,
            allow=args.allow,
        )
        if args.save:
            _save(args, result.captures_after)
        if args.journal:
            turn = journal.append(Path(args.journal), result, args.note, before, after)["turn"]
            print(f"turn {turn} is in {args.journal}", file=sys.stderr)
        if args.format == "github":
            sys.stdout.writelines(f"{line}\n" for line in workflow_warnings(result))
        elif args.format == "junit":
            sys.stdout.write(junit(result, args.lenient))
        else:
            write(diff_report(result, args.limit or None), args.format)
        if args.annotate:
            for line in workflow_warnings(result):
                print(line, file=sys.stderr)
    return exit_code(result, args.lenient)


def _check_journal(args: argparse.Namespace, before: Sequence[str]) -> None:
    """Before the work: a journal of two sides' times, in a file that is one or does not exist."""
    from pathlib import Path

    from profiling_lab.errors import UsageError
    from profiling_lab.report.diff.journal import turns

    if args.note and not args.journal:
        raise UsageError("--note goes into a journal: expected --journal FILE.jsonl as well")
    if args.journal and (args.memory or not before):
        what = "--memory" if args.memory else "--save with one side"
        raise UsageError(f"--journal keeps comparisons of times: it cannot be combined with {what}")
    if args.journal:
        turns(Path(args.journal))


def _memory(
    args: argparse.Namespace, before: Sequence[Trace | Capture], after: Sequence[Trace | Capture]
) -> int:
    """Compare the peaks alone. Raises UsageError with an option that asks about the times."""
    from profiling_lab.analysis.diff.memory import diff_memory
    from profiling_lab.errors import UsageError
    from profiling_lab.report.diff.memory import memory_diff_report
    from profiling_lab.report.table import write

    if given := [name for name in ("gate", "budget", "annotate", "save") if getattr(args, name)]:
        raise UsageError(
            f"--{given[0]} is about the times, which --memory does not compare: leave one of them out"
        )
    if args.format in ("github", "junit"):
        raise UsageError(f"--format {args.format} needs no --memory: it shows the outcome of --gate-memory")
    result = diff_memory(
        before, after, by=args.by, own=tuple(args.own), gate=args.gate_memory, allow=args.allow
    )
    write(memory_diff_report(result, args.limit or None), args.format)
    return _code([result.gate] if result.gate else [], args.lenient)


def _opened(args: argparse.Namespace, names: list[str], opened: ExitStack) -> list[Trace | Capture]:
    """The recordings of one side; a baseline may hold several."""
    from pathlib import Path

    from profiling_lab.analysis.diff.baseline import is_baseline, load_baseline

    side: list[Trace | Capture] = []
    for name in names:
        if is_baseline(Path(name)):
            side += load_baseline(Path(name), tuple(args.own), args.steps_by)
        else:
            side.append(opened.enter_context(shared.open_trace(args, name)))
    return side


def _refuse_to_replace(args: argparse.Namespace, names: Sequence[str]) -> None:
    """An existing file is replaced only with --overwrite, and a recording that is compared never."""
    from pathlib import Path

    from profiling_lab.analysis.diff.baseline import is_baseline
    from profiling_lab.export.output import refuse

    recordings = [Path(name) for name in names if not is_baseline(Path(name))]
    for source in (*recordings, None):
        refuse(Path(args.save), overwrite=args.overwrite, source=source)


def _save(args: argparse.Namespace, side: Sequence[Trace | Capture]) -> int:
    """Write the baseline, and report it."""
    import sys
    from pathlib import Path

    from profiling_lab.analysis.diff.baseline import save_baseline
    from profiling_lab.analysis.diff.measure import measure
    from profiling_lab.report.numbers import counted
    from profiling_lab.trace import Trace

    own = tuple(args.own)
    captures = [measure(each, own, args.steps_by) if isinstance(each, Trace) else each for each in side]
    path = Path(args.save)
    save_baseline(captures, path)
    steps = sum(len(capture) for capture in captures)
    what = f"{counted(steps, 'step')} of {counted(len(captures), 'recording')}"
    print(f"saved {what} in {path}", file=sys.stderr)
    return 0


def _sides(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The files of both sides. With --save there may be only the side after.

    Raises UsageError unless each side has a file.
    """
    from profiling_lab.errors import UsageError

    if args.traces and (args.before or args.after):
        raise UsageError("expected either two FILEs or --before and --after, not both")
    if len(args.traces) == 1 and args.save:
        if args.gate or args.gate_memory or args.budget:
            raise UsageError(
                "--gate, --gate-memory and --budget need two sides: expected a recording from before the "
                "change as well"
            )
        return [], _split(args.traces)
    if args.traces and len(args.traces) != 2:
        raise UsageError(
            f"expected two FILEs, before and after, not {len(args.traces)}; separate several of one side "
            "with "
            "commas, or use --before and --after"
        )
    before, after = [[args.traces[0]], [args.traces[1]]] if args.traces else [args.before, args.after]
    before, after = _split(before), _split(after)
    if not before or not after:
        raise UsageError("expected recordings from before and from after the change")
    return before, after


def _split(names: list[str]) -> list[str]:
    from pathlib import Path

    parts = ([name] if Path(name).exists() else name.split(",") for name in names)
    return [name for listed in parts for name in listed if name]


def exit_code(result: DiffResult, lenient: bool) -> int:
    """0 ok, 1 over a limit, 3 undecided: not comparable, too few steps, or a limit within the noise. The
    last one does not pass, because noise may hide a regression of twice the gate.
    """
    if not result.comparable:
        return 3
    return _code([limit for _, limit in result.limits], lenient)


def _code(limits: Sequence[LimitResult | MemoryLimit], lenient: bool) -> int:
    if any(limit.outcome == "fail" for limit in limits):
        return 1
    undecided = [limit for limit in limits if limit.outcome == "undecided"]
    return 3 if any(not (lenient and limit.is_noise) for limit in undecided) else 0
