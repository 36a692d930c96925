# SPDX-License-Identifier: Apache-2.0
"""Make the files of tests/data/golden_h100 from the recordings of run.py.

    python benchmarks/ranks/reduce.py OUT [--only NAME,NAME] [--to tests/data/golden_h100] [--bytes 150000]

Of each job the last steps are kept, as many as fit, reduced as benchmarks/reduce_trace.py does; all ranks are
one NAME.tar.xz. Tests read them with the times of mending, which become times.json. A job is only written if
`ranks` says the same of it as of the whole recordings: rank, line, kind, and a gain within 15 %.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import sqlite3
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from cases import Case, cases
from score import step_times

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all benchmarks share
from reduce_trace import reduce

from profiling_lab.analysis.ranks import JobResult, LocalPool, ranks
from profiling_lab.trace import Trace
from profiling_lab.trace.step_windows import step_windows

REPO = Path(__file__).resolve().parents[2]
MOST_STEPS, LEAST_STEPS = 8, 3
SAME_WITHIN = 1.15
_OPERATIONS = ("KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION")
_NVTX_DOMAIN = 75


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder that run.py has filled")
    parser.add_argument("--only", default="", help="names of cases, with commas (default: all)")
    parser.add_argument("--to", type=Path, default=REPO / "tests" / "data" / "golden_h100")
    parser.add_argument("--bytes", type=int, default=150_000, help="of a job, at most (default: 150000)")
    args = parser.parse_args()
    args.to.mkdir(parents=True, exist_ok=True)
    times, failed = step_times(args.out / "times.jsonl"), 0
    kept = args.to / "times.json"
    known: dict[str, Any] = json.loads(kept.read_text()) if kept.is_file() else {}
    for name, case in cases().items():
        recordings = sorted((args.out / "recorded" / name).glob("*.sqlite"))
        if len(recordings) < 2 or (args.only and name not in args.only.split(",")):
            continue
        said = _reduced(case, recordings, args.to / f"{name}.tar.xz", args.bytes)
        failed += not said.startswith("kept")
        print(f"{name:28} {said}", flush=True)
        if said.startswith("kept") and name in times:
            known[name] = {way: round(ms, 3) for way, ms in times[name].items()}
    kept.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
    (args.to / "README.md").write_text(_readme(args.out / "times.jsonl"))
    return 1 if failed else 0


def _reduced(case: Case, recordings: list[Path], target: Path, most_bytes: int) -> str:
    whole = ranks(list(map(str, recordings)), pool=LocalPool(1))
    why = f"too large: more than {most_bytes} bytes"
    for steps in range(MOST_STEPS, LEAST_STEPS - 1, -1):
        with tempfile.TemporaryDirectory() as folder:
            small = [Path(folder, path.name) for path in recordings]
            for source, path in zip(recordings, small, strict=True):
                cut(source, path.with_suffix(".cut"), steps)
                reduce(path.with_suffix(".cut"), path, (str(_folder_of(source)),), samples=True)
            data = packed(small)
            if len(data) > most_bytes:
                continue
            part = ranks(list(map(str, small)), pool=LocalPool(1))
            if (apart := _apart(whole, part)) is None:
                target.write_bytes(data)
                return f"kept {steps} steps, {len(data)} bytes: {_text(part)}"
            why = f"with {steps} steps: {apart}"
    return f"NOT KEPT: {why}"


def _readme(times: Path) -> str:
    row = json.loads(times.read_text().splitlines()[0])
    machine = f"{row['gpu']} (driver {row['driver']}, torch {row['torch']})"
    return f"""\
Jobs of {row["case"]["ranks"]} x {machine}, {row["date"][:10]}: the programs of benchmarks/ranks, one
process a GPU, recorded by `benchmarks/ranks/run.py`, cut and reduced by `benchmarks/ranks/reduce.py`.
`times.json` has the milliseconds of a step as it is and mended, without a recording;
`benchmarks/results/ranks_times.jsonl` has every sample.
"""


def _folder_of(recording: Path) -> Path:
    """Of the repository, as it was where the job ran."""
    tail = f"/{Path(__file__).relative_to(REPO).with_name('run.py')}"
    with sqlite3.connect(recording) as file:
        row = file.execute("SELECT value FROM StringIds WHERE value LIKE ?", [f"%{tail}"]).fetchone()
    return Path(row[0].removesuffix(tail)) if row else Path("/nowhere")


def cut(source: Path, target: Path, steps: int, *, rest: bool = True) -> None:
    """A copy with the last steps, and what tells who is in NCCL's communicators. rest: what the program does
    after them is kept.
    """
    with Trace.open(source) as trace:
        found = step_windows(trace)
        begins = sorted(found.host_start_ns.tolist())
        until_ns = None if rest or not len(found) else int(found.host_end_ns.max())
    since_ns = begins[max(0, len(begins) - steps - 1)] if begins else 0
    target.write_bytes(source.read_bytes())
    with sqlite3.connect(target) as file:
        tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        calls = "CUPTI_ACTIVITY_KIND_RUNTIME"
        outside, times = "start < ? OR start > coalesce(?, start)", [since_ns, until_ns]
        captured = "SELECT correlationId FROM PYREC_GRAPH_NODE" if "PYREC_GRAPH_NODE" in tables else "-1"
        file.execute(f"DELETE FROM {calls} WHERE ({outside}) AND correlationId NOT IN ({captured})", times)
        launched = f"SELECT correlationId FROM {calls}"
        for kind in _OPERATIONS:
            if (table := f"CUPTI_ACTIVITY_KIND_{kind}") in tables:
                file.execute(f"DELETE FROM {table} WHERE correlationId NOT IN ({launched})")
        if "NVTX_EVENTS" in tables:
            text = "coalesce(text, (SELECT value FROM StringIds WHERE id = textId), '')"
            members = f"binaryData IS NOT NULL AND {text} LIKE 'ncclComm%'"
            file.execute(
                f"DELETE FROM NVTX_EVENTS WHERE start < ? AND eventType != ? AND NOT ({members})",
                [since_ns, _NVTX_DOMAIN],
            )
        if "PYREC_HOST_EVENT" in tables:
            file.execute(f"DELETE FROM PYREC_HOST_EVENT WHERE {outside}", times)
    file.close()


def packed(files: list[Path]) -> bytes:
    """One archive, the same for the same files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path in files:
            entry = tarfile.TarInfo(path.name)
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                archive.addfile(entry, file)
    return lzma.compress(out.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def _apart(whole: JobResult, part: JobResult) -> str | None:
    """What is not the same."""
    one, other = whole.verdict, part.verdict
    if (one.kind, one.rank) != (other.kind, other.rank):
        return f"{_text(part)} instead of {_text(whole)}"
    if one.blame is None or other.blame is None:
        return None if one.blame is other.blame else f"{_text(part)} instead of {_text(whole)}"
    same = (one.blame.cause, _shown(one.blame.line)) == (other.blame.cause, _shown(other.blame.line))
    ratio = other.cost_ns / one.cost_ns if one.cost_ns else 1.0
    if not same or not 1 / SAME_WITHIN <= ratio <= SAME_WITHIN:
        return f"{_text(part)} instead of {_text(whole)}"
    return None


def _shown(line: str) -> str:
    """Without folders, which are cut off."""
    return " ".join(word.rsplit("/", 1)[-1] for word in line.split(" "))


def _text(result: JobResult) -> str:
    found, blame = result.verdict, result.verdict.blame
    rank = "" if found.rank is None else f" rank {found.rank}"
    more = f" {blame.cause} {_shown(blame.line) or 'no line'}" if blame else ""
    return f"{found.kind}{rank}{more} {found.cost_ns / 1e6:.2f} ms"


if __name__ == "__main__":
    raise SystemExit(main())
