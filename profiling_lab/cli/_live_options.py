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
        help="record nothing until `profiling-lab attach PID` requests a recording",
    )
    parser.add_argument(
        "--budget",
        metavar="SHARE",
        type=_share,
        help="record whole steps during the whole run, within this overhead (such as 1%% of the run time); "
        "--warmup, "
        "--active and --step-by can be combined with it; without --max-size the recording ends at "
        f"{_BUDGET_BYTES // 10**9} GB",
    )


def _share(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%?)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a share such as 1% or 0.01, not {text!r}")
    return float(match[1]) / (100 if match[2] else 1)


def most_bytes_of_budget(args: argparse.Namespace) -> int:
    """The size limit of the capture: a recording that always runs must not fill the disk."""
    return _BUDGET_BYTES if args.budget is not None else 0


def run_dormant(args: argparse.Namespace, schedule: Schedule) -> int:
    """Run the script in a process that can be attached to. If the set-up fails, the script still runs."""
    from profiling_lab import _recorder
    from profiling_lab.errors import LabError, UsageError
    from profiling_lab.recording import Schedule
    from profiling_lab.recording.live.listener import listen
    from profiling_lab.recording.run_script import end_process, find_module, find_script, run_script

    wants = [args.output, args.overwrite, args.max_size, args.status, *sampling_options(args)]
    wants += [args.no_stacks, args.no_source, args.no_nvtx, args.graph_nodes]
    wants += [args.memory, args.energy, args.counters, args.work, args.work_step is not None]
    if any(wants) or schedule != Schedule():
        raise UsageError(
            "--dormant records nothing by itself: tell profiling-lab attach what to record, and where to"
        )
    script = find_module(args.script) if args.is_module else find_script(args.script)
    listener = None
    try:
        listener = listen(script.name)
        _say(f"dormant: profiling-lab attach {os.getpid()} --steps 5 records this process")
    except (LabError, OSError) as error:
        _say(f"this process cannot be attached to: {error}")
    result = run_script(
        script, args.arguments, _recorder.python_stacks.hide_callers, _recorder.leave_out_this_thread
    )
    if listener is not None:
        listener.close()
    return end_process(result)


def _say(line: str) -> None:
    print(f"profiling-lab: {line}", file=sys.stderr, flush=True)
