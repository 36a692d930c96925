# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab info`: the contents of a trace, and what is missing."""

from __future__ import annotations

import argparse

from profiling_lab.cli import _trace_arguments as shared

HELP = "show what is in a trace, how it was captured, and how to record what is missing"
EXAMPLES = """\
  profiling-lab info run.sqlite
  profiling-lab info nsys_export.sqlite --format json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    shared.add_own(parser)
    shared.add_window(parser)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.errors import UnreadableInputError
    from profiling_lab.report.table import write

    with shared.open_tables(args) as tables:
        write(tables.info().report, args.format)
        # The rest is shown. But a file that lost all GPU events is unreadable as a recording.
        trace = tables.trace
        return UnreadableInputError.exit_code if not len(trace.operations) and trace.source.is_cut else 0
