# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab check`: find problems in a trace, each with evidence, cost, source line and remedy."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from profiling_lab.cli import _rule_arguments as shared_rules
from profiling_lab.cli import _trace_arguments as shared

if TYPE_CHECKING:
    from profiling_lab.api import TraceTables

HELP = "find problems in a trace: evidence, cost, source line and remedy"
EXAMPLES = """\
  profiling-lab check run.sqlite
  profiling-lab check run.sqlite --only bound,dataloader
  profiling-lab check run.sqlite --skip tiny_kernels --set dataloader.share=10%
  profiling-lab check run.sqlite --rules-from my_rules.py     your own rules too
  profiling-lab check run.sqlite --fail-on 2ms                exit code 1 only for costs above 2 ms per step
  profiling-lab check run.sqlite --format github              annotations for CI, pinned to the lines
  profiling-lab check run.sqlite --ncu report.csv             and what hardware counters show of its kernels
  profiling-lab check report.csv                              a report of ncu alone: no lines, no idle time
  profiling-lab rules                                         every threshold, and where it comes from

exit codes: 0 no finding at the level of --fail-on, 1 findings, 3 all rules abstained
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    parser.add_argument("--only", metavar="A,B", help="only these rules")
    parser.add_argument("--skip", metavar="A,B", default="", help="all rules but these")
    parser.add_argument(
        "--fail-on",
        metavar="WHAT",
        default="low",
        help="when the exit code is 1: for a finding of this severity (low, medium, high) or higher, or "
        "for one that "
        "costs more than 5%% of the recording or than 2ms per step (in total, if there are no steps); or "
        "never (default: low, any finding)",
    )
    parser.add_argument(
        "--ncu",
        metavar="REPORT",
        help="also what only hardware counters show, kernel by kernel, from this report of Nsight Compute "
        "of the same program: the CSV of `ncu --csv --page raw`, or an .ncu-rep where ncu is installed",
    )
    shared_rules.add_rules(parser)
    shared.add_steps_by(parser)
    parser.add_argument(
        "--whole", action="store_true", help="include the start-up, not only the steady steps"
    )
    shared.add_own(parser)
    shared.add_window(parser)
    shared.add_limit(parser, 20)
    shared.add_format(parser, "github")


def run(args: argparse.Namespace) -> int:
    import sys

    from profiling_lab.errors import NotEnoughDataError
    from profiling_lab.report.check import check_annotations
    from profiling_lab.report.table import write
    from profiling_lab.rules import parse_fail_on

    fails = parse_fail_on(args.fail_on)
    with _opened(args) as trace:
        found = trace.check(
            args.only,
            skip=args.skip,
            set=args.set,
            rules_from=args.rules_from,
            whole=args.whole,
            ncu=args.ncu,
            limit=args.limit,
        )
    checked = found.result
    if args.format == "github":
        sys.stdout.writelines(f"{line}\n" for line in check_annotations(checked))
    else:
        write(found.report, args.format)
    if any(fails(finding, checked.span_ns) for finding in checked.findings):
        return 1
    return 0 if checked.could_tell else NotEnoughDataError.exit_code


def _opened(args: argparse.Namespace) -> TraceTables:
    """A recording, or a report of ncu where FILE is one."""
    from pathlib import Path

    from profiling_lab.analysis.ncu.as_trace import REPORTS, trace_of_report
    from profiling_lab.api import TraceTables

    if args.ncu is None and Path(args.trace).suffix in REPORTS:
        return TraceTables(trace_of_report(Path(args.trace))[0], own=args.own)
    return shared.open_tables(args)
