# SPDX-License-Identifier: Apache-2.0
"""How much GPU time has a line of Python, program by program, and what the rest is.

    python benchmarks/line_coverage.py -o benchmarks/results/line_coverage.jsonl

The programs are those of tests/recorder/programs, whose tests say which lines they must be. Each is
recorded on its own, after a warm-up. Two GPUs add the one that trains on both.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from script import run_script

from profiling_lab.analysis.lines import lines
from profiling_lab.measure import ResultsFile, machine
from profiling_lab.recording import record
from profiling_lab.trace import Trace

PROGRAMS = Path(__file__).resolve().parents[1] / "tests" / "recorder" / "programs"
BENCHMARK = "line_coverage"
STEPS = 5
# Program and the options of its build(); what replays graphs comes last.
CASES: tuple[tuple[str, dict[str, object]], ...] = (
    ("gpt2", {}),
    ("vit", {}),
    ("checkpointing", {"use_reentrant": False}),
    ("checkpointing", {"use_reentrant": True}),
    ("custom_function", {}),
    ("double_backward", {}),
    ("operators", {}),
    ("two_threads", {}),
    ("accumulation", {}),
    ("data_loading", {}),
    ("compiled", {}),
    ("compiled", {"mode": "reduce-overhead"}),
    ("cuda_graph", {}),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Share of GPU time with a line of Python.")
    parser.add_argument("--output", "-o", type=Path, help="append JSON lines here")
    parser.add_argument("--table", type=Path, metavar="RESULTS", help="only print results as Markdown")
    args = parser.parse_args()
    if args.table:
        sys.stdout.write(table(args.table))
        return 0
    results = ResultsFile(args.output, machine("cuda"))
    sys.path.insert(0, str(PROGRAMS.parent))
    with TemporaryDirectory(prefix="profiling-lab-bench-") as folder:
        for name, options in CASES:
            add(results, name, options, run(Path(folder) / "run.sqlite", name, options))
        if torch.cuda.device_count() > 1:
            for rank, path in enumerate(run_on_two(Path(folder))):
                add(results, "distributed", {"rank": rank}, path)
    for line in results.lines:
        print(line["case"], line["metric"], f"{line['value']:.6g}", line["unit"], file=sys.stderr)
    return 0


def run(path: Path, name: str, options: dict[str, object]) -> Path:
    step = importlib.import_module(f"programs.{name}").build("cuda", **options)
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    with record(path, overwrite=True):
        for _ in range(STEPS):
            step()
    return path


def run_on_two(folder: Path) -> Iterator[Path]:
    launch = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    program = (str(PROGRAMS / "distributed.py"), str(folder / "run-{rank}.sqlite"))
    subprocess.run([*launch, *program], check=True, stdout=subprocess.DEVNULL)
    yield from (folder / f"run-{rank}.sqlite" for rank in range(2))


def add(results: ResultsFile, name: str, options: dict[str, object], path: Path) -> None:
    with Trace.open(path) as trace:
        covered = lines(trace, own=(f"programs/{name}.py",)).coverage
    case = {"program": name, **{option: str(value) for option, value in options.items()}}
    provider = "profiling_lab"
    results.add(BENCHMARK, case, provider, "gpu_time", covered.gpu_ns, "ns")
    results.add(BENCHMARK, case, provider, "with_a_line", covered.attributed_frac, "ratio")
    if covered.linked_ns:
        results.add(BENCHMARK, case, provider, "inferred", covered.inferred_ns / covered.linked_ns, "ratio")
    for rest in covered.unattributed:
        why = case | {"reason": rest.reason}
        results.add(BENCHMARK, why, provider, "without_a_line", rest.ns / covered.gpu_ns, "ratio")


def table(results: Path) -> str:
    """The latest figures of each program."""
    latest: dict[str, dict[str, Any]] = {}
    reasons: dict[str, list[str]] = {}
    for line in map(json.loads, results.read_text().splitlines()):
        options = {name: value for name, value in line["case"].items() if name not in ("program", "reason")}
        who = " ".join([line["case"]["program"], *(f"{name}={value}" for name, value in options.items())])
        if line["metric"] == "gpu_time":
            latest[who], reasons[who] = {}, []
        if line["metric"] == "without_a_line":
            reasons[who].append(f"{100 * line['value']:.2f} % {line['case']['reason']}")
        else:
            latest[who][line["metric"]] = line["value"]
    rows = [
        f"| {who} | {found['gpu_time'] / 1e6:.2f} ms | {100 * found['with_a_line']:.2f} % "
        f"| {_percent(found.get('inferred'))} | {'; '.join(reasons[who]) or '-'} |\n"
        for who, found in latest.items()
    ]
    head = "| program | GPU time | with a line | of backward: inferred | the rest |\n|---|---|---|---|---|\n"
    return head + "".join(rows)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


if __name__ == "__main__":
    run_script(main)
