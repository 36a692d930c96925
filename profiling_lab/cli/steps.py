# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab steps`: where the time of each step goes."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _trace_arguments as shared

HELP = "show where the time of each step goes: compute, communication, copies, idle"
EXAMPLES = """\
  profiling-lab steps run.sqlite
  profiling-lab steps run.sqlite --nvtx '^epoch'              your own ranges are the steps
  profiling-lab steps trace.json.gz --limit 0 --format csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    shared.add_nvtx(parser)
    shared.add_limit(parser, 50)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.report.steps import steps_report
    from profiling_lab.report.table import write
    from profiling_lab.trace import Trace
    from profiling_lab.trace.steps import steps

    with Trace.open(args.trace) as trace:
        write(steps_report(trace, steps(trace, args.nvtx, args.limit or None)), args.format)
    return 0
