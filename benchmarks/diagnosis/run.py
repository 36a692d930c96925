# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of the diagnosis benchmark on this machine's GPU: recorded, as they are, and mended.

    python benchmarks/diagnosis/run.py --out recorded/ [--only NAME,NAME] [--limit S]

Each program runs under `profiling-lab record` with its defaults, whole, as a user would, which writes
`recorded/NAME.sqlite`. Then it runs as it is and mended, which measures what its defect costs:
`recorded/times.jsonl` gets the step times. A healthy one is recorded alone, because nothing in it can be
mended. score.py compares what `check` says of the recordings with truth.toml and these times. With the part
`profiler` each program runs under torch.profiler, too, whole and with stacks and shapes:
`recorded/NAME.json.gz` is what peers.py gives to the tools that read such traces.

One part of all programs comes after the other, in the order of --parts and --only. What is left when --limit
seconds are over is told. One program runs at a time; the next one starts while recordings are written to
their files.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import re
import runpy
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).parent
PARTS = ("recordings", "times", "profiler")
STEP = re.compile(r"step_ms ([\d.]+)")
"""what a program prints when its steps are done"""
MOST_S = 60
"""that a run may take"""
AT_WORK = 2
"""recordings that may still be written while the next program runs"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the recordings and times.jsonl")
    parser.add_argument("--only", default="", help="names of programs, with commas (default: all)")
    parser.add_argument("--parts", default="recordings,times", help="what to do (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=float("inf"), metavar="S", help="seconds for all")
    args = parser.parse_args()
    until = time.monotonic() + args.limit
    every = {path.stem: path for path in sorted((HERE / "programs").glob("*.py"))}
    wanted, parts = args.only.split(",") if args.only else list(every), args.parts.split(",")
    if missing := set(wanted) - set(every):
        parser.error(f"there is no program {', '.join(sorted(missing))} in {HERE / 'programs'}")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; expected some of {', '.join(PARTS)}")
    args.out.mkdir(parents=True, exist_ok=True)
    _prepare()
    asked = Child(_tell_machine)  # a process that has looked at the GPU cannot fork others that use it
    _import_before_forks([every[name] for name in wanted])
    status, text = asked.end()
    if status:
        parser.error(text.strip().splitlines()[-1])
    return Runner(args.out, json.loads(text.splitlines()[-1]), until).run([every[n] for n in wanted], parts)


def _prepare() -> None:
    # Asking the driver whether there is a GPU would start it, and a fork of such a process cannot use CUDA.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch._dynamo  # noqa: F401 - the first optimizer imports it, which takes seconds


def _tell_machine() -> int:
    from profiling_lab.measure.device import machine

    print(json.dumps(asdict(machine())))
    return 0


def _import_before_forks(programs: list[Path]) -> None:
    """What the programs and the end of a recording import, once instead of in each fork."""
    import torch

    import profiling_lab.recording.convert  # noqa: F401

    for program in programs:
        for line in ast.parse(program.read_text()).body:
            if isinstance(line, (ast.Import, ast.ImportFrom)):
                with contextlib.suppress(ImportError):  # which its own run will tell
                    exec(ast.unparse(line), {})
    if torch.cuda.is_initialized():
        raise SystemExit("an import has started CUDA: processes that are forked now could not use it")


class Runner:
    def __init__(self, out: Path, machine: dict[str, str], until: float) -> None:
        from profiling_lab.measure.device import Machine
        from profiling_lab.measure.results import ResultsFile

        self._out, self._until, self._failed = out, until, 0
        self._results = ResultsFile(out / "times.jsonl", Machine(**machine))
        self._being_written: list[tuple[Path, Child]] = []

    def run(self, programs: list[Path], parts: list[str]) -> int:
        do = {"recordings": self._record, "times": self._time, "profiler": self._profile}
        left = []
        for part in parts:
            for path in programs:
                began = time.monotonic()
                if part == "times" and path.stem.startswith("healthy_"):
                    continue
                if began >= self._until:
                    left.append(f"{part} of {path.stem}")
                else:
                    said = do[part](path)
                    print(f"{part:10} {path.stem:32} {said}  ({time.monotonic() - began:.1f} s)", flush=True)
            self._finish(0)
        if left:
            print(f"not done, the time was over: {', '.join(left)}", file=sys.stderr)
        return 1 if self._failed or left else 0

    def _time(self, path: Path) -> str:
        plain, mended = (self._step_ms(path, arguments) for arguments in ([], ["--mended"]))
        if plain is None or mended is None:
            return ""
        for provider, value in (("as it is", plain), ("mended", mended)):
            self._results.add("diagnosis", {"program": path.stem}, provider, "step", value, "ms")
        return f"{plain:9.2f} ms, mended {mended:9.2f} ms"

    def _step_ms(self, path: Path, arguments: list[str]) -> float | None:
        """The program's own step time."""
        status, text = program(path, arguments)
        found = STEP.search(text)
        if status or found is None:
            self._say_failed(f"{path.stem} {' '.join(arguments)}", status, text)
            return None
        return float(found[1])

    def _record(self, path: Path) -> str:
        from profiling_lab.cli import main as profiling_lab

        recording = self._out / f"{path.stem}.sqlite"
        recording.unlink(missing_ok=True)
        child = Child(lambda: profiling_lab(["record", "--overwrite", "-o", str(recording), str(path)]))
        child.read(STEP)
        self._being_written.append((recording, child))
        self._finish(AT_WORK)
        return ""

    def _finish(self, at_work: int) -> None:
        """Wait until at most this number of recordings are being written."""
        while len(self._being_written) > at_work:
            recording, child = self._being_written.pop(0)
            status, text = child.end()
            if status or not recording.is_file():
                self._say_failed(f"{recording.stem} recorded", status, text)

    def _profile(self, path: Path) -> str:
        trace = self._out / f"{path.stem}.json.gz"
        trace.unlink(missing_ok=True)

        def run() -> int:
            from torch.profiler import profile

            sys.argv = [str(path)]
            with profile(record_shapes=True, with_stack=True) as profiler:
                runpy.run_path(str(path), run_name="__main__")
            profiler.export_chrome_trace(str(trace))
            return 0

        status, text = Child(run).end()
        if status or not trace.is_file():
            self._say_failed(f"{path.stem} under torch.profiler", status, text)
        return ""

    def _say_failed(self, what: str, status: int, text: str) -> None:
        self._failed += 1
        print(f"{what}: status {status}: {text[-500:]}", file=sys.stderr, flush=True)


def program(path: Path | str, arguments: list[str]) -> tuple[int, str]:
    """Run it in a child. Returns the wait status and the output."""

    def run() -> int:
        sys.argv = [str(path), *arguments]
        runpy.run_path(str(path), run_name="__main__")
        return 0

    return Child(run).end()


class Child:
    """A fork of this process, where torch is imported but no CUDA context made: all that happens on the GPU
    happens anew, without the seconds of importing.
    """

    def __init__(self, run: Callable[[], int]) -> None:
        self._until, self._text = time.monotonic() + MOST_S, b""
        self._pipe, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                os.setpgid(0, 0)
                os.dup2(writing, 1)
                os.dup2(writing, 2)
                os.close(self._pipe)
                sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
                code = run()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        os.close(writing)

    def read(self, until: re.Pattern[str] | None = None) -> None:
        """Read what it prints: until that is there, or to the end, at most as long as it may run."""
        while until is None or not until.search(self._text.decode(errors="replace")):
            if select.select([self._pipe], [], [], 0.2)[0]:
                data = os.read(self._pipe, 1 << 16)
                self._text += data
                if not data:
                    return
            elif self._has_ended() or time.monotonic() >= self._until:
                return  # what it started may still hold the pipe

    def _has_ended(self) -> bool:
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end(self) -> tuple[int, str]:
        """Wait for its end. Returns the wait status and the output. What it started ends with it."""
        self.read()
        late = time.monotonic() >= self._until and not self._has_ended()
        if late:
            os.killpg(self._pid, signal.SIGKILL)
        status = os.waitpid(self._pid, 0)[1]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.close(self._pipe)
        return status, self._text.decode(errors="replace") + f"\nnot done in {MOST_S} s" * late


if __name__ == "__main__":
    raise SystemExit(main())
