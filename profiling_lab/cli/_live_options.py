# SPDX-License-Identifier: Apache-2.0
"""Options of `record` for jobs that run for days: --dormant and --budget."""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import TYPE_CHECKING

from profiling_lab.cli._sampling import sampling_options

if TYPE_CHECKING:
    from profiling_lab.recording import Schedule

_BUDGET_BYTES = 1_000_000_000


def add_live_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dormant",
        action="store_true",
        help="record nothing until `profiling-lab attach PID` asks for a window",
    )
    parser.add_argument(
        "--budget",
        metavar="SHARE",
        type=_share,
        help="record whole steps all along, as often as this share of the run's time allows (1%%); --warmup, "
        f"--active and --step-by go with it; without --max-size it ends at {_BUDGET_BYTES // 10**9} GB",
    )


def _share(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%?)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a share such as 1% or 0.01, not {text!r}")
    return float(match[1]) / (100 if match[2] else 1)


def most_bytes_of_budget(args: argparse.Namespace) -> int:
    """What always runs must not fill the disk."""
    return _BUDGET_BYTES if args.budget is not None else 0


def run_dormant(args: argparse.Namespace, schedule: Schedule) -> int:
    """Runs the script in a process that waits to be asked. Whatever fails in that, the script runs."""
    from profiling_lab import _recorder
    from profiling_lab.errors import LabError, UsageError
    from profiling_lab.recording import Schedule
    from profiling_lab.recording.live.listener import listen
    from profiling_lab.recording.run_script import end_process, find_module, find_script, run_script

    wants = [args.output, args.overwrite, args.max_size, args.status, *sampling_options(args)]
    wants += [args.no_stacks, args.no_nvtx, args.graph_nodes]
    if any(wants) or schedule != Schedule():
        raise UsageError(
            "--dormant records nothing by itself: say to profiling-lab attach what to record, and where"
        )
    script = find_module(args.script) if args.is_module else find_script(args.script)
    listener = None
    try:
        listener = listen(script.name)
        _say(f"dormant: profiling-lab attach {os.getpid()} --steps 5 records this process")
    except (LabError, OSError) as error:
        _say(f"this process cannot be attached to: {error}")
    ending = run_script(
        script, args.arguments, _recorder.python_stacks.hide_callers, _recorder.leave_out_this_thread
    )
    if listener is not None:
        listener.close()
    return end_process(ending)


def _say(line: str) -> None:
    print(f"profiling-lab: {line}", file=sys.stderr, flush=True)
