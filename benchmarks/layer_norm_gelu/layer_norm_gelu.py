# SPDX-License-Identifier: Apache-2.0
"""layer_norm_gelu against eager PyTorch, torch.compile and what else is installed, as a share of the copy
rate.

    python benchmarks/layer_norm_gelu/layer_norm_gelu.py --quick --output results.jsonl
    python benchmarks/layer_norm_gelu/layer_norm_gelu.py --processes 12 --output results.jsonl

Checks every provider that is not torch itself against float64 first. Large problems: forward counted as one
read and one write of x, backward as two reads and one write; the copy takes its turns between them, so its
share is of the same clock. Small problems: the time of one call in a CUDA graph, and of one call in a Python
loop; the backward together with its forward.

Most of the time goes into torch.compile, so it can be done before, by many processes that leave what they
compiled in torch's cache on disk and its name in a file; what is not named there is not measured:

    python benchmarks/layer_norm_gelu/layer_norm_gelu.py --prepare --processes 6 --prepared compiled.txt
    python benchmarks/layer_norm_gelu/layer_norm_gelu.py --processes 3 --prepared compiled.txt -o lines.jsonl

A measuring run with --processes deals the cases out to them: all compile at once, then each measures in its
turn. Every number is in the output as soon as it is known: name the most important --dtypes and --widths
first.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from profiling_lab.measure import ResultsFile, Timing, compare, machine, ratio
from profiling_lab.ops.layer_norm_gelu import layer_norm_gelu, reference

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the scripts that all benchmarks share
from capturable import capturable
from script import run_script, say

WIDTHS = (512, 768, 1024, 2048, 4096, 5120, 8192, 16384)
QUICK_WIDTHS = (512, 1024, 4096, 8192, 16384)
DTYPES = ("bfloat16", "float16", "float32")
MODES = ("default", "max-autotune-no-cudagraphs")
SMALL_ROWS = (1, 4, 16, 64, 256)
SMALL_WIDTH = 4096

Function = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Provider:
    name: str
    function: Function
    is_torch: bool = False


def providers(modes: list[str]) -> list[Provider]:
    """Ours first, then every peer that can be imported."""
    found = [Provider("ours", layer_norm_gelu), Provider("eager", reference, True)]
    found += [Provider(f"compile {m}", torch.compile(reference, mode=m, dynamic=False), True) for m in modes]
    try:
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction

        def liger(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return torch.nn.functional.gelu(LigerLayerNormFunction.apply(x, weight, bias, 1e-5))

        found.append(Provider("liger + gelu", liger))
    except ImportError as error:
        say(f"no Liger: {error}")
    try:
        from quack.rmsnorm import layernorm_fwd

        def quack(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            if bias.requires_grad:
                raise RuntimeError("quack's layer norm has no backward")
            return torch.nn.functional.gelu(layernorm_fwd(x, weight.float(), bias.float(), 1e-5))

        found.append(Provider("quack + gelu", quack))
    except ImportError as error:
        say(f"no quack: {error}")
    return found


def inputs(rows: int, d: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, weight, bias and dy, random, made on the GPU."""
    generator = torch.Generator("cuda").manual_seed(1)

    def normal(*size: int, mean: float, scale: float) -> Tensor:
        return torch.empty(*size, device="cuda", dtype=dtype).normal_(mean, scale, generator=generator)

    x, dy = normal(rows, d, mean=0.5, scale=2.0), normal(rows, d, mean=0.0, scale=1.0)
    return x, normal(d, mean=1.0, scale=0.3), normal(d, mean=0.0, scale=0.3), dy


def differentiable(function: Function, tensors: tuple[Tensor, ...]) -> Callable[[], tuple[Tensor, ...]]:
    """The backward of one forward, to be called any number of times."""
    *arguments, dy = tensors
    leaves = [t.detach().requires_grad_() for t in arguments]
    y = function(*leaves)
    return lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)


def both_directions(function: Function, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Forward and backward once."""
    return differentiable(function, tensors)()


def check(provider: Provider, d: int, dtype: torch.dtype) -> None:
    """Raises if the provider's results are not as near to float64 as its dtype allows."""
    tensors = inputs(1037, d, dtype)
    doubles = tuple(t.double() for t in tensors)
    truth = [reference(*doubles[:3]), *differentiable(reference, doubles)()]
    ours = [provider.function(*tensors[:3]), *differentiable(provider.function, tensors)()]
    for what, got, true in zip(("y", "dx", "dweight", "dbias"), ours, truth, strict=True):
        error = ((got.double() - true).norm() / true.norm()).item()
        if not error < 4 * torch.finfo(dtype).eps:
            raise RuntimeError(f"{provider.name} {what}: relative error {error:.2e} at d = {d}, {dtype}")


def working(candidates: list[Provider], rows: int, d: int, dtype: torch.dtype) -> list[Provider]:
    """Those that run and are right; ours must be. torch's own have run as they will be timed, so that they
    are compiled.
    """
    right = []
    tensors = inputs(rows, d, dtype)
    for provider in candidates:
        try:
            if provider.is_torch:
                with torch.no_grad():
                    provider.function(*tensors[:3])
                both_directions(provider.function, *tensors)
            else:
                check(provider, d, dtype)
            right.append(provider)
        except Exception as error:
            if provider.name == "ours":
                raise
            say(f"left out at d = {d}, {dtype}: {provider.name}: {str(error).splitlines()[0]}")
    torch.cuda.synchronize()
    return right


def large(
    results: ResultsFile, everyone: list[Provider], elements: int, d: int, dtype: torch.dtype, rounds: int
) -> None:
    """Forward and backward of a problem many times the L2 cache."""
    rows = elements // d
    tensors = inputs(rows, d, dtype)
    x, weight, bias, _ = tensors
    target = torch.empty_like(x)
    case = {"d": d, "rows": rows, "dtype": str(dtype)[6:]}
    row = f"{case['dtype']:>8} d {d:<6}"
    for direction, passes in (("forward", 2), ("backward", 3)):
        variants: dict[str, Callable[[], object]] = {"copy": lambda: target.copy_(x)}
        for provider in everyone:
            if direction == "forward":
                variants[provider.name] = partial(provider.function, x, weight, bias)
            else:
                variants[provider.name] = differentiable(provider.function, tensors)
        with torch.set_grad_enabled(direction == "backward"):
            timings = compare(variants, rounds=rounds, warmup_s=0.02, cold=False)
        moved = passes * x.numel() * x.itemsize
        for name, timing in timings.items():
            count = 2 * x.numel() * x.itemsize if name == "copy" else moved
            case_here = {**case, "direction": direction}
            results.add_timing("layer_norm_gelu", case_here, name, timing)
            results.add("layer_norm_gelu", case_here, name, "rate", count / timing.median_ns, "GB/s")
            if name != "copy":
                results.add(
                    "layer_norm_gelu", case_here, name, "share_of_copy", share(timings, name, passes), "1"
                )
        row += f" | {direction} " + "  ".join(
            f"{n} {share(timings, n, passes):.3f}" for n in timings if n != "copy"
        )
        copied = 2 * x.numel() * x.itemsize / timings["copy"].median_ns
        row += f"  (copy {copied:.0f} GB/s, iqr {timings['ours'].iqr_frac:.1%})"
    print(row, flush=True)


def share(timings: dict[str, Timing], name: str, passes: int) -> float:
    """The rate as a share of the copy's, which makes two passes."""
    return passes / 2 * ratio(timings["copy"], timings[name])


def small(results: ResultsFile, everyone: list[Provider], dtype: torch.dtype, rounds: int) -> None:
    """Microseconds a call for a few rows: of the GPU alone, and in a Python loop."""
    for rows in SMALL_ROWS:
        tensors = inputs(rows, SMALL_WIDTH, dtype)
        # A backward can be captured only together with its forward: it runs on the stream of the forward.
        for direction in ("forward", "both"):
            call = partial if direction == "forward" else partial(partial, both_directions)
            used = tensors[:3] if direction == "forward" else tensors
            variants = {provider.name: call(provider.function, *used) for provider in everyone}
            text = f"n {rows:<4} {direction:<8}"
            for mode in ("graph", "stream"):
                with torch.set_grad_enabled(direction == "both"):
                    timings = timed_where_possible(variants, mode, rounds)
                for name, timing in timings.items():
                    case = {
                        "d": SMALL_WIDTH,
                        "rows": rows,
                        "dtype": str(dtype)[6:],
                        "direction": direction,
                        "mode": mode,
                    }
                    results.add_timing("layer_norm_gelu_latency", case, name, timing)
                text += f" | {mode} us " + "  ".join(
                    f"{n} {t.median_ns / 1e3:.2f}" for n, t in timings.items()
                )
            print(text, flush=True)


def timed_where_possible(
    variants: dict[str, Callable[[], object]], mode: str, rounds: int
) -> dict[str, Timing]:
    """Some peers cannot be captured into a graph; they are named and left out."""
    usable = capturable(variants) if mode == "graph" else variants
    if not usable:
        return {}
    return compare(usable, mode=mode, rounds=rounds, warmup_s=0.03, cold=False, calls_per_sample=20)  # type: ignore[arg-type]


class Prepared:
    """The names of what was compiled before, in a file: one line for each case and torch.compile mode."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.known = None if path is None or not path.is_file() else set(path.read_text().split("\n"))

    def has(self, dtype: str, d: int | str, name: str) -> bool:
        """True for what need not be compiled, and for everything where nothing was prepared."""
        return not name.startswith("compile") or self.known is None or f"{dtype} {d} {name}" in self.known

    def add(self, dtype: str, d: int | str, name: str) -> None:
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{dtype} {d} {name}\n")


def side_by_side(options: argparse.Namespace, dtypes: list[str], widths: list[int]) -> int:
    """Processes that prepare at the same time and measure one after the other."""
    n = options.processes
    if options.prepare:  # dealt out, so that the first ones of all dtypes are done first
        cases = [f"{dtype}:{d}" for d in widths for dtype in dtypes]
        parts = [cases[i::n] for i in range(n)]
    else:  # in a row, so that they are measured in that order
        cases = [f"{dtype}:{d}" for dtype in dtypes for d in widths]
        size = -(-len(cases) // n)
        parts = [cases[i : i + size] for i in range(0, len(cases), size)]
    tasks = [["--cases", *part, "--no-small"] for part in parts if part]
    if not options.no_small:
        tasks.insert(-(-len(parts) // len(dtypes)), ["--dtypes", dtypes[0], "--widths"])
    shared = ["--elements", str(options.elements), "--rounds", str(options.rounds)]
    shared += ["--modes", *options.modes]
    shared += ["--quick"] if options.quick else []
    shared += ["--only-ours"] if options.only_ours else []
    if options.autotune is not None:
        shared += ["--autotune", *map(str, options.autotune)]
    shared += ["--prepared", str(options.prepared)] if options.prepared else []
    shared += ["--output", str(options.output)] if options.output else []
    shared += ["--run", ResultsFile(None, machine()).run]
    # What was prepared is only loaded: dozens of idle compile workers would cost more than that.
    threads = {} if options.prepared is None else {"TORCHINDUCTOR_COMPILE_THREADS": "1"}

    def start(task: list[str]) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, *shared, *task, "--prepare" if options.prepare else "--wait"]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=threads | os.environ)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # not without what was started
    processes = [start(task) for task in tasks]
    failed = 0
    with ThreadPoolExecutor(len(tasks)) as pool:
        # Each says that it is prepared, or fails. One that takes too long prepares while others measure.
        ready = [pool.submit(process.stdout.readline) for process in processes if process.stdout]
        try:
            wait(ready, timeout=None if options.prepare else options.patience)
            say(f"{sum(one.done() for one in ready)} of {len(ready)} prepared")
            for process, prepared in zip(processes, ready, strict=True):
                assert process.stdin is not None and process.stdout is not None
                if prepared.result():
                    with contextlib.suppress(BrokenPipeError):
                        process.stdin.write("go\n")
                        process.stdin.close()
                for line in process.stdout:
                    print(line, end="", flush=True)
                failed += process.wait() != 0
        finally:
            for process in processes:
                process.kill()
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="append JSON lines here")
    parser.add_argument(
        "--quick", action="store_true", help="fewer widths, bfloat16 and float32, no max-autotune"
    )
    parser.add_argument("--elements", type=int, default=1 << 28)
    parser.add_argument("--widths", type=int, nargs="*", help="none: small problems only")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, help="small problems: the first")
    parser.add_argument("--cases", nargs="+", help="dtype:width, in place of the two")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only-ours", action="store_true", help="no peers: to tune")
    parser.add_argument("--autotune", type=int, nargs="*", help="max-autotune for these widths only")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="of torch.compile")
    parser.add_argument("--no-small", action="store_true", help="no small problems")
    parser.add_argument("--processes", type=int, default=1, help="that compile at the same time")
    parser.add_argument("--prepare", action="store_true", help="only compile, measure nothing")
    parser.add_argument("--prepared", type=Path, help="the names of what was compiled")
    parser.add_argument("--patience", type=float, default=40, help="seconds until the first one measures")
    parser.add_argument("--run", help="the name of the run that the lines belong to")
    parser.add_argument("--wait", action="store_true", help="between the two for a line on stdin")
    options = parser.parse_args()

    widths = options.widths
    if widths is None:
        widths = QUICK_WIDTHS if options.quick else WIDTHS
    dtypes = options.dtypes or (("bfloat16", "float32") if options.quick else DTYPES)
    if options.processes > 1:
        return side_by_side(options, list(dtypes), list(widths))
    cases = [(dtype, d) for dtype in dtypes for d in widths]
    if options.cases:
        cases = [(dtype, int(d)) for dtype, d in (case.split(":") for case in options.cases)]

    import torch._dynamo
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False  # a backward is repeated here, with retain_graph
    torch._dynamo.config.cache_size_limit = 256
    results = ResultsFile(None if options.prepare else options.output, machine())
    results.run = options.run or results.run
    prepared = Prepared(options.prepared)
    autotuned = () if options.quick else widths if options.autotune is None else options.autotune
    everyone = [Provider("ours", layer_norm_gelu)]
    if not options.only_ours:
        everyone = providers([m for m in options.modes if m == "default" or autotuned])
    slow_to_compile = [p for p in everyone if "max-autotune" in p.name]
    quick_to_compile = [p for p in everyone if p not in slow_to_compile]
    if options.prepare:
        for these in (quick_to_compile, slow_to_compile):
            for dtype, d in cases:
                if these is slow_to_compile and d not in autotuned:
                    continue
                for provider in working(these, options.elements // d, d, getattr(torch, dtype)):
                    prepared.add(dtype, d, provider.name)
                torch.cuda.empty_cache()
        if not options.no_small:
            for rows in SMALL_ROWS:
                working(quick_to_compile, rows, SMALL_WIDTH, getattr(torch, dtypes[0]))
            prepared.add(dtypes[0], "small", "compile default")
        print("prepared", flush=True)
        return 0

    def of_case(dtype: str, d: int) -> list[Provider]:
        these = everyone if d in autotuned else quick_to_compile
        return [p for p in these if prepared.has(dtype, d, p.name)]

    def working_large(dtype: str, d: int) -> list[Provider]:
        return working(of_case(dtype, d), options.elements // d, d, getattr(torch, dtype))

    def working_small() -> list[Provider]:
        of_small = [p for p in quick_to_compile if prepared.has(dtypes[0], "small", p.name)]
        for rows in SMALL_ROWS:
            of_small = working(of_small, rows, SMALL_WIDTH, getattr(torch, dtypes[0]))
        return of_small

    ready: dict[tuple[str, int], list[Provider]] = {}
    ready_small: list[Provider] = []
    if options.wait:
        ready = {case: working_large(*case) for case in cases}
        ready_small = [] if options.no_small else working_small()
        torch.cuda.empty_cache()
        print("prepared", flush=True)
        if not sys.stdin.readline():
            return 0
    for dtype, d in cases:
        these = ready.get((dtype, d)) or working_large(dtype, d)
        large(results, these, options.elements, d, getattr(torch, dtype), options.rounds)
        torch.cuda.empty_cache()
    if not options.no_small:
        small(results, ready_small or working_small(), getattr(torch, dtypes[0]), options.rounds)
    return 0


if __name__ == "__main__":
    run_script(main)
