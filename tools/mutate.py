# SPDX-License-Identifier: Apache-2.0
"""Mutate the ops and see whether a test fails: what survives is a test that is missing, or is explained.

pip install coverage                               # for `record` alone
python tools/mutate.py record                      # which test runs which line, once, and after new tests
python tools/mutate.py run --sample 100 --seed 0   # profiling_lab/ops; C++ with --cpp, or files by name
python tools/mutate.py run --survivors             # those again that no test has killed, with --budget
python tools/mutate.py summary

Exit code 1 where more than 5 % of the mutants survive unexplained. What cannot be observed stands with its
reason in tests/mutation/explained.toml. Needs no GPU: lines that only one reaches survive here.

Not counted are C++ mutants that do not compile, and those of which the compiler makes the same library. With
ccache the file that was put back is not compiled again.

mutmut and cosmic-ray were looked at. Neither mutates C++. mutmut makes variants of functions that ask the
environment at each call, so declarations of a module are left out and torch.compile stops at them;
cosmic-ray runs one command for every mutant, and all tests of the ops take minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tools"))

from mutation import Mutant, cpp_mutants, python_mutants, tests_of  # noqa: E402
from mutation.trees import Tree  # noqa: E402

EXPLAINED = REPO / "tests" / "mutation" / "explained.toml"
_FIELDS = ("file", "code", "change")
_CPP = (
    "csrc/ops/*.cpp", "csrc/ops/*.h", "csrc/ops/*/*.cpp", "csrc/ops/*/*.h", "csrc/ops/*/cpu/*",
    "csrc/torch_abi/*.cpp", "csrc/torch_abi/*.h",
)  # fmt: skip
_NO_GPU = ("_cuda.cpp", "plan.h", "device.h", "fork.h", "conformance.cpp")
"""Host code for CUDA, which a CPU build does not compile."""
MOST_UNEXPLAINED = 0.05
_AGAIN = ("survived", "unreached", "error", "timeout")  # a loaded machine makes timeouts, too


def files(cpp: bool) -> list[str]:
    found = (
        [f for pattern in _CPP for f in REPO.glob(pattern)] if cpp else REPO.glob("profiling_lab/ops/*.py")
    )
    return sorted(str(f.relative_to(REPO)) for f in found if not f.name.endswith(_NO_GPU))


def mutants_of(file: str) -> list[Mutant]:
    make = python_mutants.mutants if file.endswith(".py") else cpp_mutants.mutants
    return make(file, (REPO / file).read_text())


def explained() -> dict[tuple[str, str], dict[str, str]]:
    """By file and line the reasons, by change; "*" is for every change of the line."""
    reasons: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for entry in tomllib.loads(EXPLAINED.read_text())["explained"]:
        changes = entry["change"] if isinstance(entry["change"], list) else [entry["change"]]
        reasons[entry["file"], entry["code"]].update(dict.fromkeys(changes, entry["reason"]))
    return reasons


def outcomes(results: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """The last outcome of each mutant that still exists."""
    found = {}
    for line in results.read_text().splitlines() if results.exists() else ():
        one = json.loads(line)
        found[tuple(one[name] for name in _FIELDS)] = one
    exist = {m.key for file in {key[0] for key in found} if (REPO / file).exists() for m in mutants_of(file)}
    return {key: one for key, one in found.items() if key in exist}


def summary(results: Path) -> int:
    reasons = explained()
    kinds = ("killed", "timeout", "explained", "survived", "unreached", "error")
    table: dict[str, Counter[str]] = defaultdict(Counter)
    left = []
    for (file, code, change), one in sorted(outcomes(results).items()):
        kind = one["outcome"]
        if kind in ("invalid", "same"):
            continue
        if kind in ("survived", "unreached"):
            of_line = reasons.get((file, code), {})
            if change in of_line or "*" in of_line:
                kind = "explained"
        if kind in ("survived", "unreached", "error"):
            left.append(f"{kind}: {file}:{one['line']}: {change}\n    {code}")
        for row in (file, "all"):
            table[row][kind] += 1
    print("\n".join(left))
    print("| file | mutants | " + " | ".join(kinds) + " |\n|---|" + "---|" * (len(kinds) + 1))
    for row in sorted(table, key=lambda row: (row == "all", row)):
        numbers = [table[row].total(), *(table[row][kind] for kind in kinds)]
        print(f"| {row} | " + " | ".join(map(str, numbers)) + " |")
    share = len(left) / max(table["all"].total(), 1)
    print(f"unexplained: {len(left)} of {table['all'].total()}, {share:.1%}")
    return int(share > MOST_UNEXPLAINED)


def run(args: argparse.Namespace) -> int:
    record = tests_of.Record(args.work / "record")
    if not record.seconds:
        sys.exit(f"{args.work} has no record of the tests; run `python tools/mutate.py record` first")
    chosen = [m for file in args.files or files(args.cpp) for m in mutants_of(file)]
    chosen = [m for m in chosen if args.code in m.code]
    random.Random(args.seed).shuffle(chosen)
    chosen = chosen[: args.sample or None]
    known = outcomes(args.results)
    if args.survivors:
        reasons = explained()
        alive = {key for key, one in known.items() if one["outcome"] in _AGAIN}
        chosen = [
            m for m in chosen if m.key in alive and not {m.change, "*"} & reasons.get(m.key[:2], {}).keys()
        ]
    else:
        chosen = [m for m in chosen if m.key not in known]
    todo: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for m in chosen:
        todo.put(m)
    lock, done = threading.Lock(), Counter[str]()

    def work(number: int) -> None:
        tree = Tree(REPO, args.work / f"tree{number}")
        if any(not m.file.endswith(".py") for m in chosen):
            tree.configure()
        if (found := tree.outcome(None, record.one_of_each_file(), 600)) != ("survived", ""):
            print(f"without a mutant the tests are not green: {found}", file=sys.stderr)
            return
        while True:
            try:
                m = todo.get_nowait()
            except queue.Empty:
                return
            start = time.perf_counter()
            tests = record.tests_of(m, args.budget)
            limit = 120 + 10 * sum(record.seconds[test] for test in tests)
            outcome, by = tree.outcome(m, tests, limit)
            seconds = round(time.perf_counter() - start, 1)
            one = {
                **dict(zip(_FIELDS, m.key, strict=True)),
                "line": m.line,
                "outcome": outcome,
                "by": by,
                "tests": len(tests),
                "seconds": seconds,
            }
            with lock, args.results.open("a") as stream:
                stream.write(json.dumps(one) + "\n")
                done[outcome] += 1
                if outcome != "killed":
                    print(f"{outcome}: {m.file}:{m.line}: {m.change}")
                print(f"{done.total()}/{len(chosen)} {dict(done)} {seconds} s", file=sys.stderr, flush=True)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(args.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return summary(args.results)


def record(args: argparse.Namespace) -> int:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPO), str(REPO / "tools"), os.environ.get("PYTHONPATH", "")]),
        "MUTATION_RECORD": str(args.work / "record"),
        "MUTATION_RECORD_MOST": str(args.most),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "mutation.record"]
    command += ["-m", "not gpu", "-n", str(args.jobs), *(args.files or ["tests/ops"])]
    return subprocess.run(command, cwd=REPO, env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("record", "run", "summary"))
    parser.add_argument("files", nargs="*", help="of `run`: files to mutate; of `record`: files of tests")
    parser.add_argument("--cpp", action="store_true", help="mutate the C++ of the CPU build")
    parser.add_argument("--code", default="", help="only lines with this text")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants, drawn with --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--survivors", action="store_true", help="only those that survived, unexplained")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of tests for each mutant")
    parser.add_argument("--most", type=int, default=1000, help="sets of parameters of each test to record")
    parser.add_argument("--jobs", "-j", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "profiling_lab_mutation")
    parser.add_argument("--results", type=Path, help="JSON lines; by default results.jsonl in --work")
    args = parser.parse_intermixed_args()
    args.work.mkdir(parents=True, exist_ok=True)
    args.results = args.results or args.work / "results.jsonl"
    if args.command == "summary":
        return summary(args.results)
    return record(args) if args.command == "record" else run(args)


if __name__ == "__main__":
    sys.exit(main())
