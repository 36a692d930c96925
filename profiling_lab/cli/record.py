# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab record`: run a script in this process, or a program in its own, and record its GPU work."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING

from profiling_lab import _child_start
from profiling_lab.cli._live_options import add_live_arguments, most_bytes_of_budget, run_dormant
from profiling_lab.cli._sampling import add_sampling, sample_hz

if TYPE_CHECKING:
    from profiling_lab.recording import Recorder, Schedule
    from profiling_lab.recording.children import Plan

HELP = "run a Python script or a program, unmodified, and record its GPU work and the lines that launch it"
EXAMPLES = """\
  profiling-lab record train.py                              writes train.sqlite
  profiling-lab record -o run.sqlite train.py --epochs 2     arguments after the script go to the script
  profiling-lab record -o run.sqlite -m package.train --lr 1e-4
  profiling-lab record --steps 10:15 train.py                 five steps, as counted by optimizer.step()
  profiling-lab record --active 2 --every 500 train.py       two of every 500 steps, no overhead in between
  profiling-lab record --sample-python train.py              sample Python stacks more often
  profiling-lab record --memory train.py                     every allocation: then profiling-lab memory
  profiling-lab record --energy train.py                     joules: then profiling-lab energy
  profiling-lab record --delay 60 --duration 5 serve.py      by time
  profiling-lab record --signal USR1 serve.py                kill -USR1 PID begins and ends a window
  profiling-lab record -o run.sqlite torchrun --nproc-per-node 2 train.py
                                                             run.rank0.sqlite, run.rank1.sqlite
  profiling-lab record accelerate launch train.py            any launcher; also pytest, a shell script, ...
  torchrun --nproc-per-node 2 -m profiling_lab record -o run.sqlite train.py
                                                             the other way round: same files
  profiling-lab record --budget 1% train.py                  whole steps, at most 1 % overhead
  profiling-lab record --dormant train.py                    nothing until profiling-lab attach PID --steps 5

Then: profiling-lab lines run.sqlite

A Python script, folder or archive runs in this process. Any other name is a program: an executable file, or a
command on PATH. It runs in its own process. Every Python process in its process tree that uses the GPU writes
its own file, and the summary lists them. Child processes of a script are recorded in the same way, unless
--no-children is given. Processes without GPU work write nothing and have no overhead. A fork of a recorded
process is not recorded. Children inherit the recording through the environment variables PROFILING_LAB_RECORD
and PYTHONPATH, so a Python with -E, -I or -S, or without profiling_lab, is not recorded.

In a job of several ranks every file name gets its rank (run.rank1.sqlite), unless -o contains {rank},
{local_rank} or {pid}. {host} and {date} work too. If the file exists, such a job chooses a free name.

The script ends as without recording: same output, traceback and exit code. The recording stops when the
script and its threads have ended, before its atexit handlers. An existing file is never replaced without
--overwrite; without -o a free name is chosen. After os._exit or a kill, what was captured so far is in
OUTPUT.spool, for `profiling-lab recover`. From Python 3.12 on, os.fork() may warn about threads, because the
recorder has one. The recording synchronises with the GPU when a window begins and ends. While another thread
captures a CUDA graph, it synchronises only the default stream, because anything else would break the capture.

exit code: the script's or the program's own (128 + N after signal N); 2 for wrong arguments, 4 if there is
no such script or program
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="SQLite file to write (default: <script>.sqlite); {rank} {local_rank} {pid} {host} {date} "
        "are filled in",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it exists")
    parser.add_argument(
        "--no-children", action="store_true", help="do not record the processes that the script starts"
    )
    parser.add_argument("--no-stacks", action="store_true", help="do not record Python stacks")
    parser.add_argument(
        "--no-source", action="store_true", help="do not store the text of the lines in the Python stacks"
    )
    parser.add_argument("--no-nvtx", action="store_true", help="do not record NVTX ranges")
    parser.add_argument(
        "--graph-nodes",
        action="store_true",
        help="record each kernel of a CUDA graph, with the line that captured it; adds overhead to each "
        "replay",
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="record every allocation of torch's caching allocator, with its line; of the whole run, "
        "whatever the windows",
    )
    parser.add_argument(
        "--energy",
        action="store_true",
        help="read the energy counter of each GPU in use, with power, clocks and temperature, for `energy`",
    )
    parser.add_argument(
        "--counters",
        action="store_true",
        help="sample hardware counters of each GPU in use (memory traffic, SMs, tensor pipe, PCIe), without "
        "replay, for `counters`; takes the permission that ncu takes",
    )
    _add_work(parser)
    add_sampling(parser)
    _add_schedule(parser)
    add_live_arguments(parser)
    parser.add_argument(
        "--max-size",
        metavar="SIZE",
        type=_size,
        default=0,
        help="end the recording when its capture file is this large (500MB, 2GB); the script continues",
    )
    parser.add_argument(
        "--status",
        metavar="S",
        type=_seconds,
        help="print what has been recorded every S seconds (default: no)",
    )
    parser.add_argument(
        "-m", dest="is_module", action="store_true", help="SCRIPT is the name of a module, as in `python -m`"
    )
    parser.add_argument(
        "script",
        metavar="SCRIPT",
        help="the Python script to run; a folder or archive with a __main__.py, or - for the standard input; "
        "or a program, such as torchrun",
    )
    parser.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="the script's own arguments"
    )


def _add_work(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--work",
        action="store_true",
        help="count the FLOPs and bytes of the operators of one step, for `roofline`: the first recorded "
        "step that is not the script's first; the host needs longer for that step",
    )
    parser.add_argument(
        "--work-step", metavar="N", type=int, help="count step N instead, the first is 0; implies --work"
    )


def _add_schedule(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to record (default: the whole run)")
    what.add_argument(
        "--steps",
        metavar="A:B",
        help="steps A up to but not including B; the first is 0, without B up to the end",
    )
    numbers = {
        "--wait": "steps before the first window's warm-up (default: 0)",
        "--warmup": "steps before each window, traced but not kept (default: 1 with --steps, else 0)",
        "--active": "steps in a window",
        "--every": "begin a window every N steps (default: one window after the other)",
        "--repeat": "at most N windows",
    }
    for flag, text in numbers.items():
        what.add_argument(flag, metavar="N", type=int, help=text)
    what.add_argument(
        "--step-by",
        metavar="HOW",
        default="optimizer",
        help="what ends a step: optimizer (step() of the script's first optimizer), nvtx:NAME (the end of a "
        "range with this name) or calls (profiling_lab.step(), which always counts)",
    )
    what.add_argument("--delay", metavar="S", type=float, help="begin after S seconds")
    what.add_argument("--duration", metavar="S", type=float, help="record for S seconds")
    what.add_argument("--signal", metavar="NAME", help="begin and end windows with this signal (USR1)")


def _schedule(args: argparse.Namespace) -> Schedule:
    """The schedule of the arguments. Raises UsageError if they contradict each other."""
    from profiling_lab.errors import UsageError
    from profiling_lab.recording import Schedule

    cycle = {name: getattr(args, name) for name in ("wait", "active", "every", "repeat")}
    cycle = {name: value for name, value in cycle.items() if value is not None}
    warmup = {} if args.warmup is None else {"warmup": args.warmup}
    others = {"step_by": args.step_by, "signal": args.signal, "duration_s": args.duration}
    if args.budget is not None:
        others["budget"] = args.budget
        warmup = warmup or {"warmup": 1}
    if args.delay is not None:
        others["delay_s"] = args.delay
    if args.steps is None:
        schedule = Schedule(**cycle, **warmup, **others)
        if args.step_by != "optimizer" and not schedule.by_steps:
            raise UsageError("--step-by needs --steps or --active: it says what ends a step")
        return schedule
    if args.budget is not None:
        raise UsageError("--budget cannot be combined with --steps: it chooses the windows itself")
    if cycle:
        raise UsageError(
            f"--steps says which steps: it cannot be combined with {', '.join('--' + name for name in cycle)}"
        )
    return Schedule.of_steps(args.steps, **warmup, **others)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, not {text}")
    return value


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a size such as 500MB or 2GB, not {text!r}")
    return int(float(match[1]) * 1000 ** " KMGT".index(match[2].upper() or " "))


def run(args: argparse.Namespace) -> int:
    from profiling_lab.cli._launch import find_program
    from profiling_lab.errors import LabError
    from profiling_lab.recording import output_name

    try:
        from profiling_lab import _recorder  # noqa: F401 - fails before anything starts
    except ImportError as error:
        raise LabError(
            f"the recorder cannot be loaded ({error}); profiling-lab doctor shows how to fix it"
        ) from None
    if args.dormant:
        return run_dormant(args, _schedule(args))

    _child_start.forget()  # settings of a recording around this one
    if args.output:
        output_name.check(args.output)
    program = None if args.is_module else find_program(args.script)
    return _run_script(args) if program is None else _launch(program, args)


def _run_script(args: argparse.Namespace) -> int:
    """Run the script in this process. Its child processes are recorded as well."""
    from profiling_lab import _recorder
    from profiling_lab.cli._children import recorded_children, say_what_became_of_children
    from profiling_lab.cli._live_status import report_every
    from profiling_lab.recording import Recorder
    from profiling_lab.recording.run_script import end_process, find_module, find_script, run_script

    script = find_module(args.script) if args.is_module else find_script(args.script)
    output = _output(args, script.name)
    recorder = Recorder(
        output,
        overwrite=args.overwrite,
        stacks=not args.no_stacks,
        nvtx=not args.no_nvtx,
        script=script.name,
        schedule=_schedule(args),
        graph_nodes=args.graph_nodes,
        memory=args.memory,
        energy=args.energy,
        counters=args.counters,
        work=args.work,
        work_step=args.work_step,
        sample_hz=sample_hz(args),
        source=not args.no_source,
        most_bytes=args.max_size or most_bytes_of_budget(args),
    )
    if not args.overwrite:
        _refuse_to_replace(output, recorder.spool_path)
    recorder.start()
    be_quiet = report_every(args.status) if args.status else lambda: None
    with recorded_children(_plan(args), output) as reports:
        result = run_script(
            script, args.arguments, _recorder.python_stacks.hide_callers, _recorder.leave_out_this_thread
        )
        be_quiet()
        failure = 0
        if not result.in_child:
            failure = _finish(recorder, script.name, output)
            say_what_became_of_children(reports)
    return end_process(result) or failure


def _launch(program: str, args: argparse.Namespace) -> int:
    """Run the program in its own process. Every process in its tree that uses the GPU is recorded."""
    from profiling_lab.cli._children import recorded_children, say_what_became_of_children
    from profiling_lab.cli._launch import run_program
    from profiling_lab.errors import UsageError
    from profiling_lab.recording import children
    from profiling_lab.recording.run_script import ScriptResult, end_process
    from profiling_lab.recording.signals import signal_number

    if args.no_children:
        raise UsageError(f"{args.script} runs as a child process, so --no-children leaves nothing to record")
    if args.status:
        raise UsageError(
            "--status works only with a Python script, which runs in this process, not with a program"
        )
    if args.output:
        _check_output(args)
    window = None if args.signal is None else signal_number(args.signal)

    with recorded_children(_plan(args)) as reports:

        def open_or_close_windows(number: int) -> bool:
            if number != window:
                return False
            for child in children.reported(reports):
                if child.state == children.RECORDING and child.is_alive:
                    os.kill(child.pid, number)
            return True

        code, interrupted = run_program(
            program, [args.script, *args.arguments], os.environ, open_or_close_windows
        )
        say_what_became_of_children(reports, args.script)
    return end_process(ScriptResult(code, interrupted))


def _plan(args: argparse.Namespace) -> Plan | None:
    """How child processes are recorded; None: not at all."""
    from profiling_lab.recording import children, output_name

    if args.no_children:
        return None
    return children.Plan(
        folder=os.getcwd(),
        output=args.output or "",
        date=output_name.now(),
        program=Path(args.script).stem,
        overwrite=args.overwrite,
        stacks=not args.no_stacks,
        nvtx=not args.no_nvtx,
        graph_nodes=args.graph_nodes,
        memory=args.memory,
        energy=args.energy,
        counters=args.counters,
        work=args.work,
        work_step=args.work_step,
        sample_hz=sample_hz(args),
        source=not args.no_source,
        most_bytes=args.max_size,
        schedule=_schedule(args).changes(),
    )


def _output(args: argparse.Namespace, script: str) -> Path:
    """The output file of this process. With several ranks, a free name is chosen if the file exists."""
    from profiling_lab.recording import output_name
    from profiling_lab.recording.rank_in_job import rank_in_job

    if not args.output:
        stem = script.rsplit(".", 1)[-1] if args.is_module else Path(os.path.abspath(script)).stem
        return output_name.free_name(output_name.with_rank(Path(f"{stem}.sqlite"), rank_in_job()))
    path, note = output_name.in_this_process(args.output, overwrite=args.overwrite)
    if note:
        _say(note)
    return path


def _check_output(args: argparse.Namespace) -> None:
    """Check the output name before any process starts. Raises UsageError."""
    from profiling_lab.errors import UsageError
    from profiling_lab.recording import output_name

    path, _ = output_name.in_this_process(args.output, overwrite=args.overwrite)
    if path.is_dir():
        raise UsageError(f"{path} is a folder; the recording needs a file name")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"the folder {path.parent} does not exist")
    if not args.overwrite:
        _refuse_to_replace(path, path.with_name(f"{path.name}.spool"))


def _refuse_to_replace(output: Path, spool: Path) -> None:
    from profiling_lab.errors import UsageError

    if output.is_file():
        raise UsageError(f"{output} exists already; choose another name with -o or pass --overwrite")
    if spool.is_file():
        raise UsageError(
            f"{spool} belongs to a recording that still runs or was not finished: "
            "profiling-lab recover turns it into a file, --overwrite deletes it"
        )


def _finish(recorder: Recorder, script: str, output: Path) -> int:
    """Stop and report what was recorded. Returns 0, or the exit code of a failure."""
    from profiling_lab.cli import _recorded
    from profiling_lab.errors import LabError

    try:
        summary = recorder.stop()
    except LabError as error:
        _say(f"{error}; {_what_is_left(recorder)}")
        return 1  # not 2: the arguments were right, the failure came later
    except KeyboardInterrupt:
        _say(f"interrupted while writing; {_what_is_left(recorder)}")
        return 1
    for line in _recorded.of_this_process(summary, script, output):
        _say(line)
    return 0


def _what_is_left(recorder: Recorder) -> str:
    if recorder.spool_path.is_file():
        return f"what was captured is kept in {recorder.spool_path}"
    return "the recording is lost"


def _say(line: str) -> None:
    from profiling_lab.report.screen.encoding import held_by

    line = line.replace("\n", "\\n")  # from a file name
    print(held_by(sys.stderr, f"profiling-lab: {line}"), file=sys.stderr, flush=True)
