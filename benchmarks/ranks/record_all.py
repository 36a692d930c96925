# SPDX-License-Identifier: Apache-2.0
"""Everything about many GPUs that needs several of them, the most important first.

python benchmarks/ranks/record_all.py --out DIR [--part NAME,NAME] [--seconds 450] [--ranks 2]

cases      the golden cases of `ranks`: timed and recorded     DIR/cases.tar.xz.0 benchmarks/ranks/run.py
ways       train_model.py in each way, plain and recorded      DIR/ways.tar.xz.0  benchmarks/distributed
tests      the tests with the marker multigpu                  DIR/said.txt
command    the first case by `record ... torchrun`             DIR/command.tar.xz.0
profiler   the cases under torch.profiler, for peers.py        DIR/profiler.tar.xz.0

A part that fails or takes too long is told, and the next one runs; what it has done by then is kept. All
that was printed is in DIR/said.txt. Archives are in pieces of 15.9 MB: cat DIR/cases.tar.xz.* | tar xJ.
--device cpu tries it on a machine without GPUs.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all benchmarks share
from forked_jobs import run_command

REPO = Path(__file__).resolve().parents[2]
RANKS, DISTRIBUTED = REPO / "benchmarks" / "ranks", REPO / "benchmarks" / "distributed"
# What a part may take of the time, at most, in seconds.
LIMITS = {"cases": 280, "ways": 120, "tests": 100, "command": 60, "profiler": 200}
PIECE_BYTES = 15_900_000
LEAST_S = 10
TESTS = (
    "tests/ops/in_models/test_two_gpus.py",
    "tests/ops/test_cuda.py",
    "tests/recorder/test_gpu_distributed.py",
    "tests/recorder/test_gpu_two_devices.py",
    "tests/measure/test_timing.py",
    "tests/measure/test_calls.py",
    "tests/utils/test_gpu_monitor.py",
)


class Work:
    def __init__(self, out: Path, work: Path, seconds: float, ranks: int, device: str) -> None:
        self.out, self.work, self.ends = out, work, time.monotonic() + seconds
        self.more = ["--ranks", str(ranks), "--device", device]
        self.packers: list[subprocess.Popen[bytes]] = []

    def do(self, part: str) -> bool:
        limit_s = min(LIMITS[part], self.ends - time.monotonic())
        if limit_s < LEAST_S:
            self.say(f"{part}: no time is left")
            return False
        began = time.monotonic()
        # It ends by itself a little earlier, and keeps what it has.
        inner_s = max(limit_s - LEAST_S, LEAST_S / 2)
        with (self.out / "said.txt").open("a") as log:
            why = run_command(self.command(part, inner_s), log, limit_s, cwd=REPO)
        self.say(f"== {part}: {why or 'done'} in {time.monotonic() - began:.0f} s")
        try:
            self.pack(part)
        except OSError as error:
            why = f"its files could not be packed: {error}"
            self.say(f"   {why}")
        return not why

    def command(self, part: str, limit_s: float) -> list[str]:
        folder, python = str(self.work / part), sys.executable
        limited = [*self.more, "--limit", f"{limit_s:.0f}"]
        if part == "tests":
            # Two at once: most of the time is Python starting. -P: the package is the installed one.
            own = ["-p", "no:cacheprovider", "--require-gpu", "-m", "multigpu", "-n", "2"]
            return [python, "-P", "-m", "pytest", "-q", *own, *TESTS]
        if part == "ways":
            results = str(self.work / "train_model.jsonl")
            return [python, str(DISTRIBUTED / "compare_ways.py"), "--out", folder, "-o", results, *limited]
        parts = {"cases": "times,recordings"}.get(part, part)
        return [python, str(RANKS / "run.py"), "--out", folder, "--parts", parts, *limited]

    def pack(self, part: str) -> None:
        """In the background: the next part needs the GPUs."""
        folder = self.work / part
        if not folder.is_dir():
            return
        for path in folder.rglob("*.json.gz"):  # xz does better alone
            with gzip.open(path) as source, path.with_suffix("").open("wb") as target:
                shutil.copyfileobj(source, target)
            path.unlink()
        results = self.work / "train_model.jsonl"
        if part == "ways" and results.is_file():
            shutil.copy(results, folder)
        archive = self.out / f"{part}.tar.xz."
        line = f"nice tar c {part} | nice xz -T8 -6 | split -b {PIECE_BYTES} -d -a 1 - {archive}"
        self.packers.append(subprocess.Popen(["bash", "-c", line], cwd=self.work))

    def end(self) -> None:
        for packer in self.packers:
            packer.wait()

    def say(self, text: str) -> None:
        print(text, flush=True)
        with (self.out / "said.txt").open("a") as log:
            log.write(f"{text}\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for what comes of it")
    parser.add_argument("--part", default=",".join(LIMITS), help="what to do (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=450, help="for everything (default: 450)")
    parser.add_argument("--ranks", type=int, default=2, help="processes, each with a GPU (default: 2)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    parts = args.part.split(",")
    if unknown := set(parts) - set(LIMITS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; expected some of {', '.join(LIMITS)}")
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONUNBUFFERED"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        work = Work(args.out.resolve(), Path(folder), args.seconds, args.ranks, args.device)
        done = [work.do(part) for part in parts]
        work.end()
    print((args.out / "said.txt").read_text()[-8000:], flush=True)
    return 0 if all(done) else 1


if __name__ == "__main__":
    raise SystemExit(main())
