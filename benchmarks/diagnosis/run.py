# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of the diagnosis benchmark on this machine's GPU: as they are, mended, and recorded.

    python benchmarks/diagnosis/run.py --out recorded/ [--only NAME,NAME] [--parts times,recordings]

Each program runs as it is and mended, which measures what its defect costs, and then once more under
`profiling-lab record` with its defaults, whole, as a user would. `recorded/times.jsonl` gets the step times,
`recorded/NAME.sqlite` the recordings; score.py compares what `check` says with truth.toml and with these times.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LIMIT_S = 120


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the recordings and times.jsonl")
    parser.add_argument("--only", default="", help="names of programs, with commas (default: all)")
    parser.add_argument("--parts", default="times,recordings", help="what to do (default: both)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    programs = sorted((HERE / "programs").glob("*.py"))
    if args.only:
        wanted = args.only.split(",")
        programs = [path for path in programs if path.stem in wanted]
        if missing := set(wanted) - {path.stem for path in programs}:
            parser.error(f"there is no program {', '.join(sorted(missing))} in {HERE / 'programs'}")
    failed = 0
    for path in programs:
        began = time.monotonic()
        said = ""
        if "times" in args.parts:
            plain, mended = _step_ms(path, []), _step_ms(path, ["--mended"])
            failed += plain is None or mended is None
            if plain is not None and mended is not None:
                _write_times(args.out / "times.jsonl", path.stem, plain, mended)
                said = f"{plain:9.2f} ms, mended {mended:9.2f} ms"
        if "recordings" in args.parts:
            failed += not _record(path, args.out)
        print(f"{path.stem:24} {said}  ({time.monotonic() - began:.1f} s)", flush=True)
    return 1 if failed else 0


def _step_ms(path: Path, arguments: list[str]) -> float | None:
    """The program's own step time. The child is forked from this process, where torch is imported but no
    CUDA context made: a fresh process without the seconds of importing."""
    import torch  # noqa: F401

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 1)
        os.close(reading)
        sys.argv = [str(path), *arguments]
        code = 1
        try:
            runpy.run_path(str(path), run_name="__main__")
            sys.stdout.flush()
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    found = re.search(r"step_ms ([\d.]+)", text)
    if status or found is None:
        print(f"{path.stem} {' '.join(arguments)} ended with status {status}: {text[-300:]}", file=sys.stderr)
        return None
    return float(found[1])


def _record(path: Path, out: Path) -> bool:
    recording = out / f"{path.stem}.sqlite"
    command = [sys.executable, "-m", "profiling_lab", "record", "--overwrite", "-o", str(recording), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode or not recording.is_file():
        print(f"{path.stem} recorded: exit code {done.returncode}: {done.stderr[-500:]}", file=sys.stderr)
        return False
    return True


def _write_times(file: Path, name: str, plain: float, mended: float) -> None:
    import torch

    cuda = torch.cuda.is_available()
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    facts = {
        "gpu": torch.cuda.get_device_name() if cuda else "none",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "git": git.stdout.strip() or os.environ.get("PROFILING_LAB_GIT", "unknown"),
        "date": datetime.date.today().isoformat(),
        "run": str(os.getpid()),
    }
    with file.open("a") as lines:
        for provider, value in (("as it is", plain), ("mended", mended)):
            row = {
                "benchmark": "diagnosis",
                "case": {"program": name},
                "provider": provider,
                "metric": "step",
                "value": value,
                "unit": "ms",
                **facts,
            }
            lines.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
