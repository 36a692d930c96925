# SPDX-License-Identifier: Apache-2.0
"""Record public programs of others: do they end as before, and has their GPU time a line?

    python benchmarks/programs/run.py --programs DIR --out benchmarks/results/programs.jsonl
    python benchmarks/programs/run.py --table benchmarks/results/programs.jsonl

DIR holds the programs, as catalogue.toml says. Each runs as a process of its own, plain and under
`profiling-lab record` in turns. A program that is in the results already is not run again; one that fails is
told and left out. What differs in the output of a recorded run goes to the results' name with .txt.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from catalogue import Program, load
from output import difference

from profiling_lab.errors import LabError
from profiling_lab.measure import ResultsFile, machine

BENCHMARK = "programs"
DONE = "exit_code_same"
_LOST = ("dropped_calls", "dropped_records", "records_without_time", "callback_errors")


@dataclass(frozen=True)
class Run:
    """How one process ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def last_words(self) -> str:
        lines = [line for line in self.err.strip().splitlines() if line.strip()]
        return lines[-1][:200] if lines else "it said nothing"


def say(text: str) -> None:
    """To stderr: stdout is for the table."""
    print(text, file=sys.stderr, flush=True)


class Failed(Exception):
    """This program has no result here; the reason is a sentence."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Record public programs, and compare with plain runs.")
    parser.add_argument("--programs", type=Path, help="folder with the programs")
    parser.add_argument("--out", type=Path, help="append JSON lines here, and skip what is in it")
    parser.add_argument("--table", type=Path, metavar="RESULTS", help="only print results as Markdown")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these programs")
    parser.add_argument("--turns", type=int, default=2, help="plain and recorded runs each (default: 2)")
    parser.add_argument("--timeout", type=float, default=60, metavar="S", help="of each process")
    parser.add_argument("--budget", type=float, default=470, metavar="S", help="no program begins after it")
    parser.add_argument("--work", type=Path, help="folder to run in, kept (default: a temporary one)")
    parser.add_argument("--cpu", action="store_true", help="only see that they start and end alike on a CPU")
    args = parser.parse_args()
    if args.table:
        sys.stdout.write(table([json.loads(line) for line in args.table.read_text().splitlines()]))
        return 0
    if args.programs is None:
        parser.error("--programs is needed: the folder with the programs")
    programs = load(args.only)
    results = ResultsFile(args.out, machine("cpu" if args.cpu else "cuda"))
    done = finished(args.out)
    work = args.work or Path(mkdtemp(prefix="profiling-lab-programs-"))
    began = time.monotonic()
    left = []
    for program in programs:
        if program.name in done:
            continue
        if time.monotonic() - began > args.budget:
            left.append(program.name)
            continue
        try:
            Trial(program, args, work, results).run()
        except Failed as failure:
            say(f"{program.name}: {failure}")
        except Exception as error:  # whatever it is, the next program is tried
            say(f"{program.name}: {type(error).__name__}: {error}")
    if args.work is None:
        shutil.rmtree(work, ignore_errors=True)
    if left:
        say(f"{args.budget:g} s are over; run this again for: {' '.join(left)}")
    sys.stdout.write(table(results.lines))
    return 0


def finished(out: Path | None) -> set[str]:
    """The programs that are in the results already."""
    if out is None or not out.is_file():
        return set()
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return {line["case"]["program"] for line in lines if line["metric"] == DONE}


class Trial:
    """One program: its data, its runs in turns, and their result."""

    def __init__(self, program: Program, args: argparse.Namespace, work: Path, results: ResultsFile) -> None:
        self.program = program
        self._programs: Path = args.programs
        self._work = work / program.name
        self._tiny: bool = args.cpu
        self._turns: int = args.turns
        self._timeout: float = args.timeout
        self._results = results

    def run(self) -> None:
        """Raises Failed where it cannot be run here."""
        program = self.program
        if self._tiny and not program.tiny:
            raise Failed("needs a GPU")
        if why := program.missing(self._programs):
            raise Failed(why)
        self._work.mkdir(parents=True, exist_ok=True)
        self._folder = program.copy(self._programs, self._work)
        self._environment = program.environment(self._programs, self._work)
        for command in program.preparations():
            made = self._process(command)
            if made.code:
                raise Failed(f"its data could not be made: {made.last_words}")
        command = program.command(self._tiny)
        if program.warm:
            self._process([sys.executable, *command])
        plain: list[Run] = []
        recorded: list[Run] = []
        for turn in range(self._turns):
            plain.append(self._process([sys.executable, *command]))
            if plain[0].code:
                raise Failed(f"does not run here (exit code {plain[0].code}): {plain[0].last_words}")
            recording = self._work / f"{turn}.sqlite"
            record = ["-m", "profiling_lab", "record", "--overwrite", "-o", str(recording)]
            recorded.append(self._process([sys.executable, *record, *command]))
        self._tell(plain, recorded)
        self._tell_recording(recording, recorded, plain)

    def _process(self, command: list[str]) -> Run:
        began = time.perf_counter()
        with subprocess.Popen(
            command,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=self._timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                raise Failed(f"took more than {self._timeout:g} s: {' '.join(command[1:3])} ...") from None
        return Run(process.returncode, out, err, time.perf_counter() - began)

    def _add(self, metric: str, value: float, unit: str) -> None:
        self._results.add(BENCHMARK, {"program": self.program.name}, "profiling_lab", metric, value, unit)

    def _tell(self, plain: list[Run], recorded: list[Run]) -> None:
        """Exit code and output; a recorded run may be like any of the plain ones."""
        self._add(DONE, float({run.code for run in recorded} == {plain[0].code}), "bool")
        for name, text in (("stdout", _out), ("stderr", _err)):
            differences = [
                min((difference(text(one), text(run)) for one in plain), key=len) for run in recorded
            ]
            itself = any(difference(text(plain[0]), text(other)) for other in plain[1:])
            self._add(f"{name}_same", float(not any(differences)), "bool")
            self._add(f"{name}_same_when_plain", float(not itself), "bool")
            self._explain(name, [line for lines in differences for line in lines])
        if any(run.code for run in recorded):
            self._explain("exit", [f"{run.code}: {run.last_words}" for run in recorded])
        for who, runs in (("plain", plain), ("recorded", recorded)):
            self._add(f"{who}_fastest", min(run.seconds for run in runs), "s")
            self._add(f"{who}_slowest", max(run.seconds for run in runs), "s")
        ratio = min(run.seconds for run in recorded) / min(run.seconds for run in plain)
        self._add("process_ratio", ratio, "ratio")
        say(f"{self.program.name}: {plain[-1].seconds:.1f} s plain, {recorded[-1].seconds:.1f} s recorded")

    def _tell_recording(self, path: Path, recorded: list[Run], plain: list[Run]) -> None:
        """What the file holds. Without one, the results say so by having no such line."""
        if not path.is_file():
            self._explain("recording", [f"no file was written: {recorded[-1].last_words}"])
            return
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as file:
            meta = dict(file.execute("SELECT name, value FROM PYREC_META"))
        self._add("file", path.stat().st_size, "B")
        self._add("dropped", sum(int(meta.get(name, 0)) for name in _LOST), "records")
        if self._tiny:
            return  # without a GPU there is no line
        command = [sys.executable, "-m", "profiling_lab", "lines", str(path), "--format", "json"]
        answer = self._process([*command, "--limit", "10"])
        if answer.code:
            self._explain("lines", [f"exit code {answer.code}: {answer.last_words}"])
            return
        covered = json.loads(answer.out)["coverage"]
        self._add("kernels", covered["kernels"], "kernels")
        self._add("gpu_time", covered["gpu_ns"], "ns")
        if covered["gpu_ns"]:
            self._add("with_a_line", covered["attributed_frac"], "ratio")
            self._explain("lines", [f"{r['gpu_ns']} ns: {r['reason']}" for r in covered["unattributed"]])
        # From start() to stop(): without the interpreter's start and the writing of the file.
        inside = float(meta["seconds"]) / min(run.seconds for run in plain)
        self._add("running_ratio", inside, "ratio")

    def _explain(self, what: str, lines: list[str]) -> None:
        if not lines:
            return
        text = "".join(f"{self.program.name} {what}: {line}\n" for line in lines)
        if self._results.path is not None:
            with self._results.path.with_suffix(".txt").open("a", encoding="utf-8") as file:
                file.write(text)
        sys.stderr.write(text)


def _out(run: Run) -> str:
    return run.out


def _err(run: Run) -> str:
    return run.err


def table(lines: list[dict[str, Any]]) -> str:
    """The latest figures of each program."""
    found: dict[str, dict[str, float]] = {}
    for line in lines:
        name = line["case"]["program"]
        if line["metric"] == DONE:  # the first of a program's lines: what came before is older
            found[name] = {}
        found[name][line["metric"]] = line["value"]
    head = (
        "| program | exit code | output | kernels | GPU time with a line | plain | recorded | ratio "
        "| file |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(_row(name, values) for name, values in found.items())


def _row(name: str, values: dict[str, float]) -> str:
    def cell(metric: str, form: Callable[[float], str]) -> str:
        return form(values[metric]) if metric in values else "-"

    cells = (
        name,
        "same" if values[DONE] else "differs",
        _output(values),
        cell("kernels", lambda v: f"{v:,.0f}"),
        cell("with_a_line", lambda v: f"{100 * v:.2f} %"),
        _range(values, "plain"),
        _range(values, "recorded"),
        cell("process_ratio", lambda v: f"{v:.3f}"),
        cell("file", lambda v: f"{v / 1e6:.1f} MB"),
    )
    return "| " + " | ".join(cells) + " |\n"


def _range(values: dict[str, float], which: str) -> str:
    """No range where programs ran concurrently: such times say little."""
    if f"{which}_fastest" not in values:
        return "-"
    return f"{values[f'{which}_fastest']:.1f} to {values[f'{which}_slowest']:.1f} s"


def _output(values: dict[str, float]) -> str:
    parts = []
    for name in ("stdout", "stderr"):
        if not values[f"{name}_same"]:
            own = "" if values[f"{name}_same_when_plain"] else " (so do plain runs)"
            parts.append(f"{name} differs{own}")
    return ", ".join(parts) or "same"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        say(str(error))
        sys.exit(error.exit_code)
