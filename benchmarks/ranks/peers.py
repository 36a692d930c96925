# SPDX-License-Identifier: Apache-2.0
"""What other tools say of the golden cases, next to the truth and to `profiling-lab ranks`.

    python benchmarks/ranks/peers.py OUT --bin VENV/bin [-o benchmarks/results/ranks.jsonl]

OUT is a folder of run.py. VENV is an environment with HolisticTraceAnalysis and nsys-ai; this project needs
neither. Holistic Trace Analysis reads the traces of torch.profiler: its straggler is the rank that
`get_potential_stragglers` puts first in most steps; it always puts one first, and it names no line. It looks
for kernels of NCCL by their name of before 2.19, ncclKernel, and fails on those of today, so they are renamed
for it. Overlap and breakdown are what else it has of ranks. nsys-ai reads both of our recordings merged into
one file, and answers with the first serious finding of `diagnose`; a rank or line counts if its text names
it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import Case, cases
from score import machine_of

HTA = """
import json, os, sys
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
from hta.trace_analysis import TraceAnalysis
files = {rank: path for rank, path in enumerate(sys.argv[1:])}
traces = TraceAnalysis(trace_files=files, trace_dir=os.path.dirname(sys.argv[1]))
found = {}
def ask(name, call):
    try:
        found[name] = call()
    except Exception as error:
        found[name] = f"failed: {type(error).__name__}: {error}"
ask("stragglers", lambda: [int(rank) for rank in traces.get_potential_stragglers(num_candidates=1)])
ask("overlap", lambda: traces.get_comm_comp_overlap(visualize=False).to_dict("records"))
ask("breakdown", lambda: traces.get_temporal_breakdown(visualize=False).to_dict("records"))
print("FOUND " + json.dumps(found, default=float))
"""


@dataclass(frozen=True)
class Answer:
    """None where a tool has no such answer."""

    rank: int | None
    said: str


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder that run.py has filled")
    parser.add_argument("--bin", type=Path, required=True, help="folder of the tools' programs and python")
    parser.add_argument("--only", default="", help="names of cases, with commas (default: all)")
    parser.add_argument("-o", "--output", type=Path, help="append JSON lines here, too")
    args = parser.parse_args()
    os.environ["PATH"] = f"{args.bin.resolve()}{os.pathsep}{os.environ['PATH']}"
    results = None
    if args.output:
        from profiling_lab.measure.results import ResultsFile

        results = ResultsFile(args.output, machine_of(args.out / "times.jsonl"))
    known = [case for name, case in cases().items() if not args.only or name in args.only.split(",")]
    for tool, (package, ask) in TOOLS.items():
        for case in known:
            answer = ask(args.out, case)
            if answer is None:
                continue
            rank, line = _judged(case, answer)
            marks = " ".join({None: "- ", True: "yes", False: "no "}[mark] for mark in (rank, line))
            print(f"{tool:8} {case.name:26} rank, line: {marks}  {answer.said[:150]}", flush=True)
            if results is not None:
                facts = {"program": case.name, "delay": "delay" if case.delays else "", "said": answer.said}
                provider = f"{tool} {_version(package)}"
                for metric, value in (("rank", rank), ("line", line)):
                    if value is not None:
                        results.add("ranks", facts, provider, metric, float(value), "bool")
    return 0


def _judged(case: Case, answer: Answer) -> tuple[bool | None, bool | None]:
    """Of the first delay. Where there is none, whether no rank is named."""
    if not case.delays:
        return answer.rank is None, None
    delay = case.delays[0]
    named = {int(n) for n in re.findall(rf"\b{case.path.stem}\.py[:(](\d+)", answer.said)}
    return answer.rank == delay.rank, bool(named & set(case.lines(delay.name))) if delay.line else None


def hta(out: Path, case: Case) -> Answer | None:
    traces = sorted((out / "profiled" / case.name).glob("rank*.json*"))
    if not traces:
        return None
    with tempfile.TemporaryDirectory() as folder:
        renamed = [Path(folder, trace.name.removesuffix(".gz")) for trace in traces]
        for trace, path in zip(traces, renamed, strict=True):
            data = trace.read_bytes()
            data = gzip.decompress(data) if trace.suffix == ".gz" else data
            path.write_bytes(data.replace(b"ncclDevKernel", b"ncclKernel"))
        text = _run(["python", "-c", HTA, *map(str, renamed)])
    match = re.search(r"(?m)^FOUND (.+)$", text)
    if match is None:
        return Answer(None, "gave up")
    found: dict[str, Any] = json.loads(match[1])
    ranks = found["stragglers"]
    if not isinstance(ranks, list):
        return Answer(None, ranks)
    rank = max(set(ranks), key=ranks.count) if ranks else None
    parts = [f"straggler {', '.join(map(str, ranks)) or 'none'}"]
    if isinstance(found["overlap"], list):
        shares = (f"{row['comp_comm_overlap_pctg']:.0f} %" for row in found["overlap"])
        parts.append(f"overlap {', '.join(shares)}")
    if isinstance(found["breakdown"], list):
        shares = (
            f"{row['compute_time_pctg']:.0f}/{row['idle_time_pctg']:.0f} %" for row in found["breakdown"]
        )
        parts.append(f"compute/idle {', '.join(shares)}")
    return Answer(rank, "; ".join(parts))


def nsys_ai(out: Path, case: Case) -> Answer | None:
    recordings = sorted((out / "recorded" / case.name).glob("*.sqlite"))
    if not recordings:
        return None
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder, "job.sqlite")
        files = (str(path.resolve()) for path in recordings)
        _run([sys.executable, "-m", "profiling_lab", "merge", *files, "-o", str(whole)], folder)
        if not whole.is_file():
            return Answer(None, "the recordings could not be merged")
        text = _run(["nsys-ai", "diagnose", str(whole), "--format", "json"], folder)
    try:
        findings = json.loads(text)["findings"]
    except (json.JSONDecodeError, KeyError):
        return Answer(None, "gave up")
    serious = [each for each in findings if each.get("severity") != "info"]
    if not serious:
        return Answer(None, "nothing")
    first = serious[0]
    said = f"{first['label']}: {first.get('note', '')}"
    named = re.search(r"\brank (\d+)\b", said, re.IGNORECASE)
    return Answer(int(named[1]) if named else None, said)


TOOLS = {"HTA": ("HolisticTraceAnalysis", hta), "nsys-ai": ("nsys-ai", nsys_ai)}


def _run(command: list[str], folder: str | None = None) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=300)
    except subprocess.TimeoutExpired:
        return ""
    if done.returncode:
        print(f"{' '.join(command)[:60]}: {done.stderr.strip()[-300:]}", file=sys.stderr)
    return done.stdout


def _version(package: str) -> str:
    text = _run(["python", "-c", f"import importlib.metadata as m; print(m.version('{package}'))"])
    return text.strip() or "unknown"


if __name__ == "__main__":
    raise SystemExit(main())
