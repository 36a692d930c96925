# SPDX-License-Identifier: Apache-2.0
"""Bytes and FLOPs as `roofline` counts them from shapes, against what the hardware counters say.

    python benchmarks/roofline_accuracy.py --results benchmarks/results/roofline_accuracy.jsonl
    python benchmarks/roofline_accuracy.py --only attention --seconds 30      # prints alone
    python benchmarks/roofline_accuracy.py --models                         # whole steps instead of operators

One ncu process measures all operators of benchmarks/roofline_pairs.py; a marker kernel stands between two of
them. It needs permission to read the counters. ncu empties the caches before each kernel, so an operator of
several kernels reads what its first one left in the L2 cache from memory again. At the end of a kernel part
of what it wrote is still in the L2 cache: up to half of that cache is added from the L2's counter of writes.
FLOPs are those of the tensor cores, so products in float32 without TF32 have none to compare with.
benchmarks/roofline_sampled.py measures the bytes of all of them in two minutes, without ncu.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
STORED = "lts__t_sectors_srcunit_tex_op_write.sum"
TENSOR = re.compile(r"^sm__ops_path_tensor_src_(bf16_dst_fp32|fp16|tf32_dst_fp32|fp64)(_sparsity_off)?$")
MARKER = "spin_kernel"  # of torch.cuda._sleep
SECTOR_BYTES = 32
ENOUGH = 150  # operators before the models
WITH_FLOPS = ("matmul", "convolution", "attention", "recurrent")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", help="append to this JSON lines file")
    parser.add_argument("--only", help="only this kind of operator")
    parser.add_argument("--compiled", action="store_true", help="also kernels that torch.compile generates")
    parser.add_argument("--models", action="store_true", help="steps of whole models instead")
    parser.add_argument("--with-models", action="store_true", help="these too, after the first 150 operators")
    parser.add_argument(
        "--seconds", type=float, default=80.0, help="begin no further operator after this time"
    )
    parser.add_argument("--begin", type=int, default=0, help="leave out this many operators")
    parser.add_argument("--keep", help="keep ncu's CSV and the counted work in this folder")
    parser.add_argument(
        "--flops", action="store_true", help="only the counters of the tensor cores, of what has FLOPs: fast"
    )
    parser.add_argument("--limit", type=float, default=600.0, help="stop ncu after this time")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    return child(args) if args.child else parent(args)


def ncu_program() -> str:
    """ncu, where PATH or CUDA's folder has it."""
    found = shutil.which("ncu") or next(
        (
            str(p)
            for p in [
                *Path("/usr/local").glob("cuda*/bin/ncu"),
                *Path("/opt/nvidia").glob("nsight-compute/*/ncu"),
            ]
        ),
        "",
    )
    if not found:
        raise SystemExit("this measurement needs ncu, which is not on PATH")
    return found


def metrics_of(ncu: str) -> tuple[list[str], list[str]]:
    """All counters that are read, and those of the tensor cores among them, as far as this GPU has them."""
    listed = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, check=False).stdout
    known = {line.split()[0] for line in listed.splitlines() if "__" in line.split(" ")[0]}
    tensor = [name for name in sorted(known) if TENSOR.match(name)]
    whole = [name for name in tensor if not name.endswith("_sparsity_off")]
    tensor = [f"{name}.sum" for name in tensor if name in whole or name[: -len("_sparsity_off")] not in whole]
    wanted = [READ, WRITTEN, STORED]
    missing = [name for name in wanted if known and name.removesuffix(".sum") not in known]
    print(f"counters of tensor cores: {', '.join(tensor) or 'none'}; unknown: {', '.join(missing) or 'none'}")
    if not tensor or missing:
        print("\n".join(sorted(n for n in known if n.startswith(("sm__ops_path", "lts__t_sectors_srcunit")))))
        print(listed[-500:], flush=True)
    return [*(name for name in wanted if name not in missing), *tensor], tensor


def parent(args: argparse.Namespace) -> int:
    ncu = ncu_program()
    metrics, tensor = metrics_of(ncu)
    if args.flops:  # they fit into one pass, so no memory has to be restored between passes
        metrics = tensor
    folder = Path(args.keep or tempfile.mkdtemp(prefix="roofline"))
    folder.mkdir(parents=True, exist_ok=True)
    table, work = folder / "ncu.csv", folder / "work.jsonl"
    for old in (work, table):
        old.unlink(missing_ok=True)
    options = ["--only", args.only] * bool(args.only) + ["--compiled"] * args.compiled
    options += ["--models"] * args.models + ["--with-models"] * args.with_models
    options += ["--flops"] * args.flops
    command = [
        ncu, "--profile-from-start", "off", "--clock-control", "none", "--metrics", ",".join(metrics),
        "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(table), "-f",
        sys.executable, __file__, "--child", str(work), "--seconds", str(args.seconds),
        "--begin", str(args.begin), *options,
    ]  # fmt: skip
    print("$", " ".join(command), flush=True)
    began = time.monotonic()
    code = run_for(command, args.limit)
    print(f"ncu ended with {code} after {time.monotonic() - began:.0f} s", flush=True)
    counted = [json.loads(line) for line in work.read_text().splitlines()] if work.is_file() else []
    rows = list(read_csv(table)) if table.is_file() else []
    measured = list(between_markers(rows))
    if len(measured) != len(counted):
        print(f"{len(counted)} operators were called, the counters have {len(measured)}: the rest is dropped")
    report(list(zip(counted, measured, strict=False)), tensor, args.results, args.flops)
    return 0 if measured else 1


def run_for(command: list[str], seconds: float) -> int:
    """Its exit code. After this time it ends, with all it started."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        print(f"stopped after {seconds:.0f} s", flush=True)
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def read_csv(path: Path) -> Iterator[dict[str, str]]:
    """ncu's rows, one per kernel, without the row of units and without its messages."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        print("\n".join(lines[-20:]))
        return
    for row in csv.DictReader(lines[first:]):
        if (row.get("ID") or "").strip().isdigit():
            yield row


def number(text: str | None) -> float:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:  # n/a: this kernel has none
        return 0.0


def between_markers(rows: Iterable[dict[str, str]]) -> Iterator[list[dict[str, str]]]:
    """The kernels of each operator: a marker begins it."""
    kernels: list[dict[str, str]] | None = None
    for row in rows:
        if MARKER in row["Kernel Name"]:
            if kernels is not None:
                yield kernels
            kernels = []
        elif kernels is not None:
            kernels.append(row)
    if kernels:  # without a last marker: the last operator may be cut
        return


def measured_work(kernels: list[dict[str, str]], tensor: list[str], l2_bytes: int) -> dict[str, float]:
    read = written = flops = 0.0
    for row in kernels:
        read += number(row.get(READ))
        left, stored = number(row.get(WRITTEN)), SECTOR_BYTES * number(row.get(STORED))
        written += left + min(max(stored - left, 0), l2_bytes / 2)
        flops += sum(number(row.get(name)) for name in tensor)
    return {"read_bytes": read, "written_bytes": written, "flops": flops}


def report(found: list[tuple[Any, Any]], tensor: list[str], results: str | None, only_flops: bool) -> None:
    from profiling_lab.measure import ResultsFile, machine

    file = ResultsFile(results, machine("cuda"))
    errors = Errors()
    for counted, kernels in found:
        case = {name: counted[name] for name in ("kind", "op", "shape", "dtype")}
        if "error" in counted or not kernels:
            print(f"  {case['op']} {case['shape']}: {counted.get('error', 'no kernel was measured')}")
            continue
        measured = measured_work(kernels, tensor, counted["l2_bytes"])
        if counted["flops"] is None:
            del measured["flops"]
        if only_flops:
            measured = {"flops": measured["flops"]}
        write(file, case, counted, "ncu", measured)
        file.add("roofline_accuracy", case, "ncu", "kernels", len(kernels), "kernels")
        errors.add(case, counted, measured)
    errors.show()


def write(file: Any, case: dict[str, str], counted: Any, who: str, measured: dict[str, float]) -> None:
    """A line for each quantity that was measured, and for the same as it is counted."""
    for provider, values in (("modelled", counted), (who, measured)):
        for metric in measured:
            unit = "FLOP" if metric == "flops" else "B"
            file.add("roofline_accuracy", case, provider, metric, values[metric], unit)


class Errors:
    """Of what is counted, by kind of operator."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[tuple[float | None, float | None]]] = {}

    def add(self, case: dict[str, str], counted: Any, measured: dict[str, float]) -> None:
        """Also prints it."""
        ratios = {name: _ratio(counted[name], value) for name, value in measured.items()}
        if "read_bytes" in measured:
            names = ("read_bytes", "written_bytes")
            mine, theirs = (sum(values[name] for name in names) for values in (counted, measured))
            ratios["bytes"] = _ratio(mine, theirs)
        of_bytes, of_flops = (_error(ratios.get(name)) for name in ("bytes", "flops"))
        self._kinds.setdefault(case["kind"], []).append((of_bytes, of_flops))
        text = ", ".join(f"{name} {'-' if r is None else format(r, '.3f')}" for name, r in ratios.items())
        name = f"{case['kind']:14} {case['op']:28} {case['shape']:32} {case['dtype']:9}"
        print(f"  {name} counted / measured: {text}", flush=True)

    def show(self) -> None:
        print(f"\n{'kind':16} pairs  median error of bytes, of FLOPs")
        everything = [error for values in self._kinds.values() for error in values]
        for kind, values in [*sorted(self._kinds.items()), ("all", everything)]:
            if values:
                texts = [_median([pair[i] for pair in values]) for i in (0, 1)]
                print(f"{kind:16} {len(values):5}  {', '.join(texts)}")


def _median(values: list[float | None]) -> str:
    there = [value for value in values if value is not None]
    return f"{100 * statistics.median(there):.1f} %" if there else "-"


def _error(ratio: float | None) -> float | None:
    return None if ratio is None else abs(ratio - 1)


def _ratio(counted: float, measured: float) -> float | None:
    return counted / measured if measured else None


def interleaved(pairs: list[Any]) -> list[Any]:
    """One of each kind in turn, so that a run that is cut short has all kinds."""
    kinds: dict[str, list[Any]] = {}
    for pair in pairs:
        kinds.setdefault(pair.kind, []).append(pair)
    return [pair for row in zip_longest(*kinds.values()) for pair in row if pair is not None]


def chosen_pairs(args: argparse.Namespace) -> list[Any]:
    """What is called, in order."""
    from roofline_models import models
    from roofline_pairs import pairs

    if args.models:
        return models()
    found = interleaved(
        [
            pair
            for pair in pairs(args.compiled)
            if args.only in (None, pair.kind) and (not args.flops or pair.kind in WITH_FLOPS)
        ]
    )
    if args.with_models:
        found[ENOUGH:ENOUGH] = models()
    return found[args.begin :]


def child(args: argparse.Namespace) -> int:
    """Under ncu: every operator once to warm up, counting its work, and once with the counters on."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import torch

    began = time.monotonic()
    ends = began + args.seconds
    chosen = chosen_pairs(args)
    measuring = 0.0
    l2_bytes = int(torch.cuda.get_device_properties(0).L2_cache_size)
    cudart: Any = torch.cuda.cudart()
    torch.cuda._sleep(10)
    with open(args.child, "a", encoding="utf-8") as file:
        for done, pair in enumerate(chosen):
            if time.monotonic() > ends:
                print(f"time is up: {done} of {len(chosen)} operators; --begin {args.begin + done} goes on")
                break
            case = {"kind": pair.kind, "op": pair.op, "shape": pair.shape, "dtype": pair.dtype}
            try:
                run, work = prepared(pair.make)
            except Exception as error:
                print(f"  {pair.op} {pair.shape}: {type(error).__name__}: {str(error)[:200]}", flush=True)
                torch.cuda.empty_cache()
                continue
            if args.flops and work["flops"] is None:
                continue
            switched = time.monotonic()
            if failed := measured(cudart, run):
                work["error"] = failed
            measuring += time.monotonic() - switched
            file.write(json.dumps(case | work | {"l2_bytes": l2_bytes}) + "\n")
            file.flush()
            del run
            torch.cuda.empty_cache()
        measured(cudart, None)  # its marker ends the last one
    print(f"{time.monotonic() - began:.0f} s, {measuring:.0f} of them with the counters on", flush=True)
    return 0


def measured(cudart: Any, run: Callable[[], object] | None) -> str:
    """Call it with the counters on, after a marker. Returns its error."""
    import torch

    failed = ""
    torch.cuda.synchronize()
    cudart.cudaProfilerStart()
    torch.cuda._sleep(10)
    try:
        if run is not None:
            run()
    except Exception as error:
        failed = f"{type(error).__name__}: {str(error)[:200]}"
    torch.cuda.synchronize()
    cudart.cudaProfilerStop()
    return failed


def prepared(make: Callable[[], Callable[[], object]]) -> tuple[Callable[[], object], dict[str, Any]]:
    """The call, warm, and its counted work."""
    import torch

    from profiling_lab.work import WorkCounter

    torch.manual_seed(0)
    run = make()
    run()
    torch.cuda.synchronize()
    with WorkCounter(device="cuda") as counter:
        run()
    torch.cuda.synchronize()
    calls = [call.work for call in counter.calls]
    flops = [work.flops for work in calls if work.flops is not None]
    return run, {
        "read_bytes": sum(work.read_bytes for work in calls),
        "written_bytes": sum(work.written_bytes for work in calls),
        "flops": sum(flops) if flops else None,
        "operators": [call.name for call in counter.calls][:20],
    }


if __name__ == "__main__":
    sys.exit(main())
