# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab check`: what is wrong in a trace, with evidence, cost, line and remedy."""

from __future__ import annotations

import argparse
from pathlib import Path

from profiling_lab.cli import _trace_arguments as shared

HELP = "say what is wrong in a trace: evidence, cost, the line, and what to do"
EXAMPLES = """\
  profiling-lab check run.sqlite
  profiling-lab check run.sqlite --rules bound,dataloader
  profiling-lab check run.sqlite --rules-from my_rules.py     your own rules beside ours
  profiling-lab check --list                                  every threshold, and where it comes from
  profiling-lab check run.sqlite --format json || echo "findings, or nothing could be told"

exit codes: 0 nothing found, 1 findings, 3 no rule could tell
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace",
        metavar="FILE",
        nargs="?",
        help="a recording of ours, an nsys export (SQLite), or torch.profiler's JSON",
    )
    parser.add_argument(
        "--rules", metavar="A,B", type=_names, help="only these rules (default: all; --list names them)"
    )
    parser.add_argument(
        "--rules-from",
        metavar="FILE.py",
        action="append",
        type=Path,
        default=[],
        help="also the rules in the tuple RULES of this Python file, which is executed",
    )
    parser.add_argument(
        "--list", action="store_true", help="show the rules with every threshold and its source, and exit"
    )
    shared.add_own(parser)
    shared.add_limit(parser, 20)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.errors import NotEnoughDataError, UsageError
    from profiling_lab.report.check import check_report, rules_report
    from profiling_lab.report.table import write
    from profiling_lab.rules import RULES, load_rules, select
    from profiling_lab.rules import run as apply
    from profiling_lab.trace import Trace
    from profiling_lab.trace.coverage import coverage
    from profiling_lab.trace.ownership import Ownership

    rules = (*RULES, *(rule for path in args.rules_from for rule in load_rules(path)))
    rules = select(rules, args.rules) if args.rules else select(rules, [rule.name for rule in rules])
    if args.list:
        write(rules_report(rules), args.format)
        return 0
    if args.trace is None:
        raise UsageError("expected a trace to check, or --list")
    with Trace.open(args.trace) as trace:
        checked = apply(trace, rules, tuple(args.own))
        covered = coverage(trace, trace.stacks.own_rows(Ownership(tuple(args.own))))
        write(check_report(trace, checked, covered, args.limit or None), args.format)
    if checked.findings:
        return 1
    return 0 if checked.could_tell else NotEnoughDataError.exit_code


def _names(text: str) -> list[str]:
    return [name.strip().replace("-", "_") for name in text.split(",") if name.strip()]
