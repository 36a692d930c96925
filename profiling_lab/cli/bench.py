# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab bench`: time functions of your own files against each other."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiling_lab.cli import _trace_arguments as shared
from profiling_lab.cli.ab import tolerance
from profiling_lab.records import replace

if TYPE_CHECKING:
    from profiling_lab.measure.bench_files import BenchResult

HELP = "time functions of your files in turns, and say whether the others are faster than the first"
EXAMPLES = """\
  profiling-lab bench a.py:f b.py:f
  profiling-lab bench ops.py:eager ops.py:compiled --rtol 1e-3 --atol 1e-5    compare the results too
  profiling-lab bench a.py:f b.py:f --fail-if-slower 5%                       for CI
  profiling-lab bench a.py:f b.py:f --warm --mode graph                       for kernels of microseconds
  profiling-lab bench a.py:f b.py:f --save results.jsonl --format json

A function is called with what the function `inputs()` of its file returns: a tuple is its arguments, a dict
its keyword arguments, anything else its one argument. A file without inputs() takes that of the first file.
random, numpy and torch have the same seed before every inputs().

    def inputs():
        return torch.randn(4096, 4096, device="cuda"), 0.1

    def f(x, rate): ...

Work on a GPU is waited for. JAX's work is waited for by the arrays that a function returns. One function at
two commits: `profiling-lab ab --git`.

exit codes: 0 ok, 1 slower than the first by more than --fail-if-slower, other results, or a function raises,
2 usage, 3 too few rounds, a limit within the noise, or the first function raises, 4 no such file
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "functions", metavar="FILE:FUNCTION", nargs="+", help="such as a.py:f; the first is the baseline"
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: where the first calls work)")
    parser.add_argument(
        "--mode",
        choices=("events", "graph", "stream", "host"),
        help="events: GPU time of each call (default on a GPU); graph: of calls in a CUDA graph; stream: "
        "calls in a row, with their launches; host: wall clock (default on the CPU and for JAX)",
    )
    parser.add_argument(
        "--rounds", metavar="N", type=shared.positive, default=30, help="samples of each (default: 30)"
    )
    parser.add_argument(
        "--calls",
        metavar="N",
        type=shared.positive,
        help="calls in one sample (default: 1; 20 for graph and stream; on the CPU enough for 0.1 ms)",
    )
    parser.add_argument(
        "--warm",
        action="store_true",
        help="leave the L2 cache as it is; by default other data fills it",
    )
    parser.add_argument(
        "--warmup",
        metavar="S",
        type=tolerance,
        default=0.2,
        help="seconds of calls that are not timed, for each function (default: 0.2)",
    )
    for name in ("rtol", "atol"):
        what = "a share of the first function's value" if name == "rtol" else "this amount"
        parser.add_argument(
            f"--{name}",
            metavar="X",
            type=tolerance,
            help=f"compare the results: numbers may differ by {what} (default: results are not compared)",
        )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the generators (default: 0)")
    parser.add_argument(
        "--fail-if-slower",
        metavar="X%",
        help="exit code 1 if a function is slower than the first by more than this",
    )
    parser.add_argument(
        "--save",
        metavar="FILE",
        help="append the times, with the facts of the machine, to this file of JSON lines",
    )
    parser.add_argument(
        "--format",
        choices=("table", "json", "md"),
        default="table",
        help="the output format (default: table)",
    )


def run(args: argparse.Namespace) -> int:
    import sys

    from profiling_lab.cli._progress import progress
    from profiling_lab.errors import LabError, NotEnoughDataError
    from profiling_lab.measure.bench_files import UNDECIDED, bench
    from profiling_lab.report.diff.bench import bench_report
    from profiling_lab.report.table import write

    limit = _limit(args)
    if args.save:
        _check_is_results(Path(args.save))
    watch = _Watch(args.device)
    try:
        # What the functions print is not part of the answer.
        with progress() as told, redirect_stdout(sys.stderr):
            result = bench(
                args.functions,
                device=args.device,
                mode=args.mode,
                rounds=args.rounds,
                cold=not args.warm,
                calls=args.calls,
                warmup_s=args.warmup,
                rtol=args.rtol,
                atol=args.atol,
                seed=args.seed,
                watched=watch.during,
                after_round=lambda done: told("rounds", done, args.rounds),
            )
    except LabError as error:
        _show_where(error.__cause__, args.functions)
        raise
    finally:
        watch.close()
    if args.save:
        _save(args, result)
    write(bench_report(result, watch.gpu, watch.sharing), args.format)
    if any(row.results is not None and row.results.state == "differ" for row in result.rows):
        return 1
    state = "" if limit is None else result.beyond(limit)
    if state == "slower":
        return 1
    if any(row.verdict == UNDECIDED for row in result.rows):
        raise NotEnoughDataError(f"{args.rounds} rounds are too few for an interval: give more --rounds")
    if state == "undecided":
        raise NotEnoughDataError(
            f"whether one is slower by more than {args.fail_if_slower} is within the noise"
        )
    return 0


def _limit(args: argparse.Namespace) -> float | None:
    from profiling_lab.analysis.diff.verdict import parse_limit
    from profiling_lab.errors import UsageError

    if args.fail_if_slower is None:
        return None
    if len(args.functions) < 2:
        raise UsageError("--fail-if-slower needs a second function: it is compared with the first")
    limit = parse_limit(args.fail_if_slower).frac
    if limit is None:
        raise UsageError(f"--fail-if-slower expects a share such as 5%, not {args.fail_if_slower!r}")
    return limit


class _Watch:
    """Power, clocks and other processes of the GPU during the measurement."""

    def __init__(self, device: str | None) -> None:
        from profiling_lab.utils.gpu_sharing import OtherProcesses

        self.gpu: dict[str, Any] | None = None
        self.sharing: dict[str, Any] | None = None
        index = (device or "cuda:0").partition(":")[2] or "0"
        self._index = int(index) if device != "cpu" and index.isdecimal() else None
        self._others = None if self._index is None else OtherProcesses(self._index)

    @contextmanager
    def during(self, device: str) -> Iterator[None]:
        if not device.startswith("cuda"):
            yield
            return
        from profiling_lab.utils.gpu_monitor import GPUMonitor
        from profiling_lab.utils.gpu_sharing import OtherProcesses

        others = self._others
        if others is None or int(device.partition(":")[2] or 0) != self._index:
            self.close()  # another GPU than the one that was looked at before
            self._others = others = OtherProcesses(int(device.partition(":")[2] or 0))
        others.begin()
        with GPUMonitor(device=device) as monitor:
            yield
        self.gpu, found = monitor.get_summary(), others.ask()
        self.sharing = {**asdict(found), "is_shared": found.is_shared, "sentence": found.sentence}

    def close(self) -> None:
        if self._others is not None:
            self._others.close()
            self._others = None


def _show_where(error: BaseException | None, functions: list[str]) -> None:
    """The part of a traceback that is the user's own."""
    import sys
    import traceback

    files = {str(Path(name.rpartition(":")[0]).resolve()) for name in functions}
    at = None if error is None else error.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename not in files:
        at = at.tb_next
    if error is not None and at is not None:
        traceback.print_exception(type(error), error, at, file=sys.stderr)


def _check_is_results(path: Path) -> None:
    """Raises UsageError if lines would be appended to another kind of file."""
    from profiling_lab.errors import UsageError

    if path.is_dir():
        raise UsageError(f"--save expects a file, and {path} is a folder")
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            if not file.read(14).startswith(b'{"benchmark": '):
                raise UsageError(f"{path} is not a file of results: bench appends to such files only")


def _save(args: argparse.Namespace, result: BenchResult) -> None:
    from profiling_lab.measure import ResultsFile, machine
    from profiling_lab.measure.device import git_commit

    folder = Path(args.functions[0].rpartition(":")[0]).resolve().parent
    facts = replace(machine(result.device), git=git_commit(folder))  # of what was measured
    if result.jax_gpu is not None:
        facts = replace(facts, gpu=result.jax_device)
    file = ResultsFile(args.save, facts)
    case: dict[str, str | int | float | bool] = {
        "mode": result.mode, "cold": result.is_cold, "calls": result.calls_per_sample, "seed": result.seed,
        "device": result.device,
    }  # fmt: skip
    for row in result.rows:
        file.add_timing("bench", case, row.name, row.timing)
        for metric, value in (("ratio", row.ratio), ("ratio_low", row.low), ("ratio_high", row.high)):
            if value is not None:
                file.add("bench", case, row.name, metric, value, "x")
