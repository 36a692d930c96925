# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab detach`: end the recording of an attached process."""

from __future__ import annotations

import argparse

HELP = "end the recording of a running process early; the attach command that started it writes the file"
EXAMPLES = """\
  profiling-lab detach 4711

exit code: 0 it ended, 2 the process is not being recorded
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "process", metavar="PID", type=int, help="the process; profiling-lab status lists them"
    )


def run(args: argparse.Namespace) -> int:
    from profiling_lab.recording.live.client import LiveProcess

    with LiveProcess(args.process) as live:
        answer = live.detach()
    print(f"process {args.process} is no longer recorded; its attach command writes {answer['path']}")
    return 0
