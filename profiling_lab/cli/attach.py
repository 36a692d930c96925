# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab attach`: record some steps or seconds of a running process."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiling_lab.cli._sampling import add_sampling, sample_hz
from profiling_lab.cli.record import _say, _seconds, _size

if TYPE_CHECKING:
    from profiling_lab.recording.live.client import LiveProcess

_HINT_AFTER_S = 20.0

HELP = "record some steps or seconds of a running process, started with record --dormant"
EXAMPLES = """\
  profiling-lab record --dormant train.py                    no overhead until someone attaches
  profiling-lab status                                       which processes can be attached to, and their ids
  profiling-lab attach 4711 --steps 5 -o run.sqlite          five whole steps
  profiling-lab attach 4711 --seconds 2                      by time, for programs without steps
  profiling-lab attach 4711 --steps 5 --step-by nvtx:step    steps end where this NVTX range ends
  profiling-lab detach 4711                                  end the window early

The command waits until the file is written. Ctrl-C ends the window early and keeps what was recorded. The job
continues in every case. Only the user who started the process (and root) can attach.

exit code: 0 the file was written, 1 the process ended or failed meanwhile (what was captured is kept), 2
there is no such process or it cannot be attached to, 3 nothing was recorded
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "process", metavar="PID", type=int, help="the process; profiling-lab status lists them"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="SQLite file to write (default: <script>-<PID>.sqlite)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it exists")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", metavar="N", type=int, help="record N whole steps")
    length.add_argument("--seconds", metavar="S", type=_seconds, help="record for S seconds")
    parser.add_argument(
        "--wait", metavar="N", type=int, default=0, help="skip N steps before the warm-up (default: 0)"
    )
    parser.add_argument(
        "--warmup",
        metavar="N",
        type=int,
        default=1,
        help="warm-up steps before them: traced, but not kept (default: 1)",
    )
    parser.add_argument(
        "--step-by",
        metavar="HOW",
        default="optimizer",
        help="what ends a step: optimizer (its step()), nvtx:NAME or calls (profiling_lab.step())",
    )
    add_sampling(parser)
    parser.add_argument("--no-stacks", action="store_true", help="do not record Python stacks")
    parser.add_argument(
        "--no-source", action="store_true", help="do not store the text of the lines in the Python stacks"
    )
    parser.add_argument("--no-nvtx", action="store_true", help="do not record NVTX ranges")
    parser.add_argument(
        "--max-size", metavar="SIZE", type=_size, default=0, help="record at most this much (500MB, 2GB)"
    )
    parser.add_argument(
        "--status", metavar="S", type=_seconds, help="print the progress every S seconds (default: no)"
    )


def run(args: argparse.Namespace) -> int:
    from profiling_lab.cli._recorded import of_this_process
    from profiling_lab.recording.live import client
    from profiling_lab.recording.live.request import Request

    with client.LiveProcess(args.process) as live:
        script = str(live.status()["script"])
        output = Path(args.output or f"{Path(script).stem}-{args.process}.sqlite")
        request = Request(
            path=os.path.abspath(output),
            steps=args.steps,
            seconds=args.seconds,
            wait=args.wait,
            warmup=args.warmup,
            step_by=args.step_by,
            overwrite=args.overwrite,
            sample_hz=sample_hz(args),
            most_bytes=args.max_size,
            stacks=not args.no_stacks,
            nvtx=not args.no_nvtx,
            source=not args.no_source,
        )
        request.schedule()  # an invalid schedule is reported without contacting the process
        spool = Path(live.attach(request)["spool"])
        with _ctrl_c_ends_the_window(live):
            _say(f"attached to process {args.process} ({script})")
            finished = _follow(live, args, output)
    if finished is None or finished["event"] == "failed":
        what = "ended while it was recorded" if finished is None else f"says: {finished['why']}"
        rows = client.recover(spool, Path(request.path))
        kernels = rows.get("CUPTI_ACTIVITY_KIND_KERNEL", 0)
        _say(f"process {args.process} {what}; recovered {kernels:,} kernels; wrote {output}")
        _say(f"the capture is kept in {spool}; next: profiling-lab lines {output}")
        return 1
    summary = client.write_file(spool, Path(request.path), finished)
    if finished["why"]:
        _say(f"the window ended early: {finished['why']}")
    for line in of_this_process(summary, script, output):
        _say(line)
    return 0


@contextlib.contextmanager
def _ctrl_c_ends_the_window(live: LiveProcess) -> Iterator[None]:
    """A handler, not KeyboardInterrupt: wherever Ctrl-C comes, what was captured is written."""

    def end_early(*_: object) -> None:
        live.let_go()
        os.write(2, b"\nprofiling-lab: the window ends early\n")  # print() may be what was interrupted

    before = signal.signal(signal.SIGINT, end_early)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _follow(live: LiveProcess, args: argparse.Namespace, output: Path) -> dict[str, Any] | None:
    """Print what happens until the window ends. Returns the last message of the process, None without one."""
    asked = time.monotonic()
    began = hinted = False
    while True:
        event = live.next_event(args.status or (None if began or hinted else _HINT_AFTER_S))
        if event is None or event.get("event") in ("finished", "failed"):
            if event is not None and event["event"] == "finished" and event["windows"]:
                _say(f"writing {output}")
            return event
        kind = event.get("event")
        if kind == "recording":
            began = True
            _say("recording")
        elif kind == "status":
            _say(f"{event['state']}, {event['steps_now']} steps ended since {time.monotonic() - asked:.0f} s")
        elif not event and args.status:
            live.ask_status()
        elif not event and args.steps:
            hinted = True
            _say(
                f"no step has ended for {_HINT_AFTER_S:.0f} s ({args.step_by}): "
                "--step-by says what ends a step, --seconds records by time"
            )
