# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab rules`: the rules of `check`, with every threshold and its source."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _rule_arguments as shared_rules
from profiling_lab.cli import _trace_arguments as shared

HELP = "list the rules of check with every threshold and its source, or explain one"
EXAMPLES = """\
  profiling-lab rules                                   every rule, threshold, default, unit and source
  profiling-lab rules dataloader                        explain one rule
  profiling-lab rules --set dataloader.share=10%        with a changed threshold
  profiling-lab rules --rules-from my_rules.py          with your own rules too

an example of your own rule, in my_rules.py:

    from profiling_lab.rules import Rule, Threshold

    LARGE = Threshold("large", "bytes of one copy", 1 << 20, "bytes, from", "ours")

    def check(view):                                       # profiling_lab.rules.view.View
        large = view.operations.size_bytes >= view[LARGE]
        rows = (view.copies & large).nonzero()[0]          # rows of view.operations
        if not len(rows):
            return ()                                      # looked, and found nothing
        took_ns = view.operations.duration_ns[rows]
        return [view.finding(f"{len(rows)} large copies", cost_ns=int(took_ns.sum()), cost_of="copy time",
                             place=view.hottest_line(rows, took_ns), rows=rows, weight=took_ns,
                             remedy="copy less")]          # or Abstain(reason, what would record it)

    RULES = (Rule("my_copies", "Are there large copies?", (LARGE,), check),)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rule", metavar="NAME", nargs="?", help="explain this rule")
    parser.add_argument("--list", action="store_true", help="list the rules (the default without NAME)")
    shared_rules.add_rules(parser)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.api import TraceTables
    from profiling_lab.errors import UsageError
    from profiling_lab.report.table import write

    if args.list and args.rule:
        raise UsageError("expected either NAME or --list, not both")
    table = TraceTables.rules(args.rule or None, set=args.set, rules_from=args.rules_from)
    write(table.report, args.format)
    return 0
