# SPDX-License-Identifier: Apache-2.0
"""What recording costs: steps with it and without, in short turns of one process; CUPTI's share; peers.

    python benchmarks/recorder/recorder_overhead.py recorder --workload loop -o results.jsonl

One run measures one workload (recorder_workloads.py) in one way, because CUPTI serves one client and a graph
must not be older than its tracing:
  recorder   the recording is on, paused, on, ...: every other block. --without leaves parts of it out
  stages     CUPTI alone, by stage: nanoseconds per call that are not ours (cupti_stages.cpp)
  peers      torch.profiler and emit_nvtx around every other block
  processes  whole programs, each in a process of its own, that take turns: plain, once more plain (what two
             processes differ by anyway), CUPTI's kernel records alone, `profiling-lab record`, nsys if there;
             --peer leaves some out, and adds "profiling-lab record --budget 1%", whose blocks
             should be longer than a window and its pause (--steps); --before compares with another build.
             --copies N starts each of them N times: `overhead_of_processes` is the ratio of the means of
             their medians, for two processes of one program differ by 1 to 3 %.
             Beside each recording: its CUDA calls and kernels in a step, what our callback took for a call,
             and what both come to in a step

A block is a few steps between two waits for the GPU, the first step after a switch is not timed. Blocks are
short and many, since the step of a program bound by launches wanders by several per cent within seconds;
`overhead` is the median ratio of neighbouring blocks and overhead_low to overhead_high its 95 % bootstrap
interval. --pin gives the launching threads a processor core each, and everything else the remaining ones.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from profiling_lab import _recorder
from profiling_lab.errors import UsageError
from profiling_lab.measure import (
    ResultsFile,
    Timing,
    compare_steps,
    machine,
    ratio,
    ratio_interval,
    step_time,
)
from profiling_lab.recording import Recorder, libcupti

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the scripts that all benchmarks share
from recorder_turns import Turns, pin_threads, take_turns
from recorder_workloads import KINDS, WORKLOADS, Step
from script import run_script

BENCHMARK = "recorder_overhead"
HERE = Path(__file__).resolve().parent
PLAIN = "plain"
DORMANT = "profiling-lab record --dormant"  # no attach
BUDGET = "profiling-lab record --budget 1%"
BEFORE = "profiling-lab record, before"
OUTSIDE = "profiling-lab record, outside of its window"
OFF_AGAIN = "CUPTI alone, used once and switched off"  # what OUTSIDE cannot be less than
COPY = ", process "
NSYS_RATES_HZ = (200, 1000, 2000)
Contexts = dict[str, Callable[[], AbstractContextManager[object]]]

# cupti_stages.cpp's bits; every stage is compared with the first.
STAGES = {
    "CUPTI: all off": 0,
    "CUPTI: runtime callbacks": 1,
    "CUPTI: runtime and driver callbacks": 3,
    "CUPTI: kernel records": 4,
    "CUPTI: kernel, copy and set records": 12,
    "CUPTI: these records, runtime callbacks": 13,
    "CUPTI: these records, all callbacks": 15,
    "CUPTI: these and overhead records, all callbacks": 31,
}
ALL_STAGES = 31
# Not in turns with the others: what this kind of record does to CUDA's calls outlasts it.
LASTING_STAGES = {"CUPTI: wait records": 32, "CUPTI: all off, after wait records": 0}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what recording costs.")
    parser.add_argument("way", choices=("recorder", "stages", "peers", "processes", "child"))
    parser.add_argument("--workload", choices=list(WORKLOADS), default="loop")
    parser.add_argument("--without", nargs="+", default=[], choices=("stacks", "autograd", "nvtx"))
    parser.add_argument("--graph-nodes", action="store_true", help="record graphs kernel by kernel")
    parser.add_argument("--peer", nargs="+", help="only these of the peers")
    parser.add_argument(
        "--before", type=Path, help="a folder with another build of the package, in turns too"
    )
    parser.add_argument("--output", "-o", type=Path, help="append JSON lines here")
    parser.add_argument("--seconds", type=float, default=30, help="time to measure for (30)")
    parser.add_argument("--steps", type=int, default=2, help="timed steps per block (2)")
    parser.add_argument("--copies", type=int, default=1, help="processes of each program (1)")
    parser.add_argument("--pin", action="store_true", help="one core for each launching thread")
    parser.add_argument("--turns", help="of a child: the socket by which it gets its turns")
    parser.add_argument("--name", help="of a child: what it is called there")
    parser.add_argument("--stage", type=int, default=0, help="of a child: the part of CUPTI in use (STAGES)")
    args = parser.parse_args()
    if args.way == "child":
        return child(args)
    results = ResultsFile(args.output, machine("cuda"))
    run = Run(args, results)
    {
        "recorder": measure_recorder,
        "stages": measure_stages,
        "peers": measure_peers,
        "processes": measure_processes,
    }[args.way](run)
    for line in results.lines:
        print(
            f"{line['provider']:44} {line['metric']:20} {line['value']:>16,.4f}",
            line["unit"],
            file=sys.stderr,
        )
    return 0


class Run:
    """One workload, its results, and how long it may be measured."""

    def __init__(self, args: argparse.Namespace, results: ResultsFile) -> None:
        self.args, self.results = args, results
        self.case = {"workload": args.workload, "way": args.way, "pinned": bool(args.pin)}
        self.step_seconds = 0.0

    def build(self, keep: ExitStack) -> Step:
        """The workload's step, warmed up. Collecting garbage would be noise: it is off from here on."""
        step = WORKLOADS[self.args.workload](keep)
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        gc.collect()
        gc.disable()
        begin = time.perf_counter()
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        self.step_seconds = (time.perf_counter() - begin) / 5
        if self.args.pin:
            pin_threads()
        return step

    def blocks(self, contexts: int, extra_seconds: float = 0.0) -> int:
        block = (self.args.steps + 1) * self.step_seconds + extra_seconds
        return max(3, int(self.args.seconds / (contexts * block)))

    def compare(self, step: Step, contexts: Contexts, extra_seconds: float = 0.0) -> dict[str, Timing]:
        """The contexts in turns; the first one is what the others are compared with."""
        blocks = self.blocks(len(contexts), extra_seconds)
        timings = compare_steps(step, contexts, steps_per_block=self.args.steps, warmup=1, blocks=blocks)
        base = next(iter(contexts))
        for name, timing in timings.items():
            self.results.add_timing(BENCHMARK, self.case, name, timing, "step_time")
            if name != base:
                self.add_ratio(name, timing, timings[base])
        return timings

    def add_ratio(
        self, name: str, timing: Timing, base: Timing, metric: str = "overhead", *, of_means: bool = False
    ) -> None:
        """of_means: a median does not see a cost that is in a few blocks only, such as a budget's windows."""
        low, high = ratio_interval(timing, base, of_means=of_means)
        for end, value in (("", ratio(timing, base, of_means=of_means)), ("_low", low), ("_high", high)):
            self.results.add(BENCHMARK, self.case, name, f"{metric}{end}", value, "ratio")


@contextmanager
def after(switch: Callable[[], object]) -> Iterator[None]:
    """A context that is a switch: it stays as it is until the next one."""
    switch()
    yield


def measure_recorder(run: Run) -> None:
    parts: dict[str, Any] = {part: False for part in run.args.without}
    name = "recorder: everything" if not parts else "recorder: without " + ", ".join(parts)
    if run.args.graph_nodes:
        parts["graph_nodes"] = True
        name += ", graphs kernel by kernel"
    with TemporaryDirectory(prefix="profiling-lab-bench-") as folder, ExitStack() as keep:
        recorder = Recorder(Path(folder) / "run.sqlite", **parts)
        recorder.start()  # before CUDA, as `profiling-lab record` does
        step = run.build(keep)
        recorder.pause()
        contexts: Contexts = {
            "recorder: paused": lambda: after(recorder.pause),
            name: lambda: after(recorder.resume),
        }
        timings = run.compare(step, contexts)
        recorder.resume()
        calls = per_step(step)
        recorder.pause()
        summary = recorder.stop()
    add_cost_per_call(run, name, timings[name], timings["recorder: paused"], calls)
    facts = {
        "callback": ("overhead_callback_ns", "ns/call"),
        "dropped": ("dropped_calls", "calls"),
        "starved": ("starved_buffer_requests", "requests"),
    }
    for metric, (fact, unit) in facts.items():
        if fact in summary.meta:
            run.results.add(BENCHMARK, run.case, name, metric, float(summary.meta[fact]), unit)


def per_step(step: Step, what: str = "calls", steps: int = 5) -> float:
    """CUDA calls, or `kernels`, that the recorder sees in a step."""
    counts = []
    for _ in range(2):
        torch.cuda.synchronize()
        time.sleep(0.2 if what == "calls" else 2.5)  # the consumer counts them; records come at a flush
        counts.append(int(_recorder.status()[what]))
        for _ in range(steps if len(counts) == 1 else 0):
            step()
    return (counts[1] - counts[0]) / steps


def measure_stages(run: Run) -> None:
    with TemporaryDirectory(prefix="profiling-lab-bench-") as folder, ExitStack() as keep:
        library = load_stages(Path(folder))
        library.stages_switch(ALL_STAGES)  # before CUDA, as the recorder does
        step = run.build(keep)
        contexts: Contexts = {
            name: (lambda bits=bits: after(lambda: library.stages_switch(bits)))  # type: ignore[misc]
            for name, bits in STAGES.items()
        }
        timings = run.compare(step, contexts)
        library.stages_switch(STAGES["CUPTI: runtime callbacks"])
        library.stages_launches()
        step()
        torch.cuda.synchronize()
        calls = library.stages_launches()
        base = timings[next(iter(STAGES))]
        for name, bits in LASTING_STAGES.items():
            library.stages_switch(bits)
            timings[name] = step_time(step, steps_per_block=run.args.steps, blocks=20, name=name)
            run.results.add_timing(BENCHMARK, run.case, name, timings[name], "step_time")
        library.stages_close()
    for name, timing in timings.items():
        add_cost_per_call(run, name, timing, base, calls)


def add_cost_per_call(run: Run, name: str, timing: Timing, base: Timing, calls: float) -> None:
    """Nanoseconds of step time for each call; of neighbouring blocks where the two took turns."""
    extra = timing.median_ns - base.median_ns
    if timing.n == base.n:
        extra = statistics.median(a - b for a, b in zip(timing.samples_ns, base.samples_ns, strict=True))
    run.results.add(BENCHMARK, run.case, name, "overhead_per_call", extra / calls, "ns/call")
    run.results.add(BENCHMARK, run.case, name, "calls", calls, "calls/step")


def load_stages(folder: Path) -> ctypes.CDLL:
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    built = folder / "cupti_stages.so"
    flags = ["-std=c++20", "-O2", "-shared", "-fPIC", f"-I{HERE.parents[1] / 'csrc'}"]
    subprocess.run([compiler, *flags, str(HERE / "cupti_stages.cpp"), "-ldl", "-o", str(built)], check=True)
    library = ctypes.CDLL(str(built))
    library.stages_launches.restype = ctypes.c_uint64
    with open("/proc/self/maps", encoding="utf-8") as maps:
        mapped = [line.split()[-1] for line in maps if "libcupti.so" in line]
    path = mapped[0] if mapped else libcupti.candidates()[0]
    if code := library.stages_open(path.encode()):
        raise SystemExit(f"CUPTI could not be opened: {code} from {path}")
    return library


def measure_peers(run: Run) -> None:
    from torch.profiler import ProfilerActivity, profile

    both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    peers: Contexts = {
        "torch.profiler": lambda: profile(activities=both),
        "torch.profiler with_stack": lambda: profile(activities=both, with_stack=True),
        "emit_nvtx, nobody listening": lambda: torch.autograd.profiler.emit_nvtx(),  # word: quoted
    }
    chosen = {name: peers[name] for name in run.args.peer or peers}
    with ExitStack() as keep:
        step = run.build(keep)
        run.compare(step, {PLAIN: nullcontext, **chosen}, extra_seconds=20 * run.step_seconds)


# ---- whole processes ----


def child(args: argparse.Namespace) -> int:
    """A program that makes its steps in turns with others. Its parent process may record it."""
    with ExitStack() as keep, TemporaryDirectory(prefix="profiling-lab-bench-") as folder:
        run = Run(args, ResultsFile(None, machine("cuda")))
        stages = load_stages(Path(folder)) if args.stage else None
        if stages:
            stages.stages_switch(args.stage)
        step = run.build(keep)
        if stages and program_of(args.name) == OFF_AGAIN:
            stages.stages_switch(0)

        def block() -> int:
            step()
            torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            for _ in range(args.steps):
                step()
            torch.cuda.synchronize()
            return (time.perf_counter_ns() - begin) // int(args.steps)

        take_turns(args.turns, args.name, block)
        if _recorder.recording() and program_of(args.name) not in (OUTSIDE, BUDGET):
            counts = {what: per_step(step, what) for what in ("calls", "kernels")}
            counts_file(args.turns, args.name).write_text(json.dumps(counts))
    return 0


def program_of(name: str) -> str:
    return name.partition(COPY)[0]


def counts_file(turns: str | Path, name: str) -> Path:
    """Where a recorded child says what is in a step."""
    return Path(turns).with_name(f"{name}.json")


def measure_processes(run: Run) -> None:
    with TemporaryDirectory(prefix="profiling-lab-bench-") as name:
        folder = Path(name)
        turns = Turns(folder / "turns")
        commands = programs(run, folder)
        wanted = (PLAIN, BEFORE, *(run.args.peer or map(program_of, commands)))
        chosen = [name for name in commands if program_of(name) in wanted]
        started = {
            name: subprocess.Popen(
                commands[name],
                stdout=subprocess.DEVNULL,
                stderr=(folder / f"{i}.txt").open("w"),
                cwd=HERE,
                env=environment(run, name),
            )
            for i, name in enumerate(chosen)
        }
        try:
            turns.wait_for(chosen, started)
        except SystemExit:
            for errors in sorted(folder.glob("*.txt")):
                sys.stderr.write(errors.read_text())
            raise
        samples: dict[str, list[int]] = {name: [] for name in chosen}
        end = time.perf_counter() + run.args.seconds
        while time.perf_counter() < end:
            forward = len(samples[PLAIN]) % 2 == 0
            for name in chosen if forward else chosen[::-1]:
                samples[name].append(turns.block(name))
        turns.end()
        plain = Timing(PLAIN, tuple(samples[PLAIN]))
        for name in chosen:
            timing = Timing(name, tuple(samples[name]))
            run.results.add_timing(BENCHMARK, run.case, name, timing, "step_time")
            if name != PLAIN:
                run.add_ratio(name, timing, plain)
                run.add_ratio(name, timing, plain, "overhead_mean", of_means=True)
        add_ratio_of_processes(run, samples)
        for process in started.values():  # they write their files
            process.wait(timeout=300)
        for name in chosen:
            add_contents(run, name, folder, commands[name])


def add_ratio_of_processes(run: Run, samples: dict[str, list[int]]) -> None:
    """Of the programs that several processes ran: the sample is a process, its value the median of its
    blocks, or their mean together with a budget, whose windows are in a few blocks only.
    """
    middle = statistics.mean if BUDGET in samples else statistics.median
    values: dict[str, list[int]] = {}
    for name, blocks in samples.items():
        values.setdefault(program_of(name), []).append(round(middle(blocks)))
    if run.args.copies < 2:
        return
    plain = Timing(PLAIN, tuple(values.pop(PLAIN)))
    for name, found in values.items():
        run.add_ratio(name, Timing(name, tuple(found)), plain, "overhead_of_processes", of_means=True)


def add_contents(run: Run, name: str, folder: Path, command: list[str]) -> None:
    """What a step holds, and what our callbacks in it took, if this program was recorded."""
    counts = counts_file(folder / "turns", name)
    if not counts.exists():
        return
    found = json.loads(counts.read_text())
    with sqlite3.connect(command[command.index("-o") + 1]) as file:
        meta = dict(file.execute("SELECT name, value FROM PYREC_META"))
    callback = float(meta.get("overhead_callback_ns", "nan"))
    for metric, value, unit in (
        ("calls", found["calls"], "calls/step"),
        ("kernels", found["kernels"], "kernels/step"),
        ("callback", callback, "ns/call"),
        ("callbacks", callback * found["calls"], "ns/step"),
    ):
        run.results.add(BENCHMARK, run.case, name, metric, value, unit)


def environment(run: Run, name: str) -> dict[str, str]:
    """The other build is found first by its own program alone."""
    path = [str(run.args.before.resolve())] if program_of(name) == BEFORE else []
    path += filter(None, [os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def programs(run: Run, folder: Path) -> dict[str, list[str]]:
    """The same program, alone and under each recorder, as often as --copies says."""
    copies = [("", folder)]
    for number in range(2, run.args.copies + 1):
        copies.append((f"{COPY}{number}", folder / str(number)))
        copies[-1][1].mkdir(exist_ok=True)
    return {
        name + copy: command
        for copy, files in copies
        for name, command in programs_of(run, folder / "turns", files, copy).items()
    }


def programs_of(run: Run, turns: Path, folder: Path, copy: str) -> dict[str, list[str]]:
    """One process of each; `copy` ends its name, `folder` takes its files."""

    def program(name: str) -> list[str]:
        pin = ["--pin"] if run.args.pin else []
        options = ["--workload", run.args.workload, "--steps", str(run.args.steps), *pin]
        return [
            str(HERE / "recorder_overhead.py"),
            "child",
            *options,
            "--turns",
            str(turns),
            "--name",
            name + copy,
        ]

    def record(name: str, *options: str) -> list[str]:
        output = folder / f"{len(commands)}.sqlite"
        command = [sys.executable, "-m", "profiling_lab", "record", "-o", str(output), *options]
        return [*command, *program(name)]

    commands: dict[str, list[str]] = {}
    for name in (PLAIN, "plain, another process"):
        commands[name] = [sys.executable, *program(name)]
    # A loop of copies has no kernels: there CUPTI's share is what its records of copies take.
    kinds = "kernel, copy and set" if run.args.workload in KINDS else "kernel"
    stage, floor = str(STAGES[f"CUPTI: {kinds} records"]), f"CUPTI's {kinds} records alone"
    commands[floor] = [sys.executable, *program(floor), "--stage", stage]
    commands[OFF_AGAIN] = [sys.executable, *program(OFF_AGAIN), "--stage", str(ALL_STAGES)]
    never = ("--wait", "1000000000", "--active", "1")
    for name, options in {
        "profiling-lab record": (),
        "profiling-lab record --no-stacks": ("--no-stacks",),
        "profiling-lab record --no-samples": ("--no-samples",),
        OUTSIDE: never,
    }.items():
        commands[name] = record(name, *options)
    if run.args.before:
        if not list(run.args.before.glob("profiling_lab/_recorder.*.so")):
            raise UsageError(
                f"--before: expected a folder with profiling_lab/_recorder.*.so, got {run.args.before}"
            )
        commands[BEFORE] = record(BEFORE)
    commands[DORMANT] = [sys.executable, "-m", "profiling_lab", "record", "--dormant", *program(DORMANT)]
    if BUDGET in (run.args.peer or ()):
        # A budget is a share of the time that passes, and most of that belongs to the other programs.
        share = f"{1 / (len(run.args.peer) + 1) / run.args.copies:.4f}%"
        commands[BUDGET] = record(BUDGET, "--budget", share)
    if nsys := shutil.which("nsys"):
        profile = [nsys, "profile", "--force-overwrite=true"]
        sampled = ("--trace=cuda,nvtx", "--sample=process-tree", "--python-sampling=true")
        stacks = ("--trace=cuda,nvtx", "--python-backtrace=cuda", "--cudabacktrace=all:0")
        for name, options in {
            "nsys cuda,nvtx": ("--trace=cuda,nvtx", "--sample=none"),
            "nsys with Python stacks": stacks,
            "nsys with CPU samples": ("--trace=cuda,nvtx", "--sample=process-tree"),
            **{
                f"nsys with Python samples, {rate} Hz": (*sampled, f"--python-sampling-frequency={rate}")
                for rate in NSYS_RATES_HZ
            },
        }.items():
            output = f"--output={folder}/nsys{len(commands)}"
            commands[name] = [*profile, output, *options, sys.executable, *program(name)]
    return commands


if __name__ == "__main__":
    run_script(main)
