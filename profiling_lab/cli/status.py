# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab status`: the running processes that can be attached to."""

from __future__ import annotations

import argparse
from typing import Any

HELP = "list the running processes that attach can record, and their state"
EXAMPLES = """\
  profiling-lab status                                       all processes of this user
  profiling-lab status 4711                                  one process, with the files of its recordings

STEPS counts the steps that ended while the process was recorded. Dormant processes do not count steps.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("process", metavar="PID", type=int, nargs="?", help="only this process")


def run(args: argparse.Namespace) -> int:
    import os

    from profiling_lab.recording.live.client import LiveProcess, live_processes

    if args.process is not None:
        with LiveProcess(args.process) as live:
            found: list[tuple[int, dict[str, Any] | str]] = [(args.process, live.status())]
    else:
        found = list(live_processes(os.geteuid()))
    if not found:
        print("no process can be attached to; start one with: profiling-lab record --dormant SCRIPT")
        return 0
    print(f"{'PID':>8}  {'STATE':<10}  {'STEPS':>7}  {'FILES':>5}  SCRIPT")
    for process, status in found:
        if isinstance(status, str):
            print(f"{process:>8}  {status}")
            continue
        files = status["files"]
        print(
            f"{process:>8}  {status['state']:<10}  {status['steps']:>7,}  {len(files):>5}  {status['script']}"
        )
        if args.process is not None:
            for file in files:
                print(f"{'':>10}{file['path']}")
            if status["path"]:
                print(f"{'':>10}{status['path']} (being recorded)")
    return 0
