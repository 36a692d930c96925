# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab doctor`: what works on this machine, and how to fix the rest."""

from __future__ import annotations

import argparse

HELP = "check what works on this machine, and how to fix the rest"
EXAMPLES = """\
  profiling-lab doctor
  profiling-lab doctor --format json      for a bug report

exit code: 0 if recording works, fully or within the limits that the table states; 1 if something is broken
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=("table", "json", "csv", "md"),
        default="table",
        help="the output format (default: table)",
    )


def run(args: argparse.Namespace) -> int:
    from profiling_lab.doctor import examine, summary
    from profiling_lab.doctor.table import doctor_report
    from profiling_lab.report.table import write

    checks = examine()
    write(doctor_report(checks), args.format)
    return summary(checks).exit_code
