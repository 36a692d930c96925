# SPDX-License-Identifier: Apache-2.0
"""Which configuration of layer_norm_gelu's kernels is fastest for which row length.

    python benchmarks/layer_norm_gelu/layer_norm_gelu_sweep.py --dtype bfloat16 --output lng_sweep.jsonl

Compiles layer_norm_gelu_sweep.cu with nvcc (about half a minute) unless --library names the result, checks
every configuration against float64, then times all of them and a copy in turns. Prints the best few as a
share of the copy rate. A configuration is: vectors of 16 bytes per thread, threads that share an
SM's registers, where weights and sums live, waves of blocks.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from profiling_lab.measure import ResultsFile, compare, machine, ratio
from profiling_lab.ops.layer_norm_gelu import reference

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the scripts that all benchmarks share
from script import run_script

HERE = Path(__file__).resolve().parent
ELEMENTS = {"bfloat16": "__nv_bfloat16", "float16": "__half", "float32": "float"}


def build(dtype: str) -> Path:
    """The sweep's library for one element type, for the GPU of this machine."""
    major, minor = torch.cuda.get_device_capability()
    arch = f"{major}{minor}" + ("a" if major >= 9 else "")
    target = Path(tempfile.mkdtemp()) / f"sweep_{dtype}.so"
    command = [
        "nvcc", "-std=c++20", "-O3", f"-I{HERE.parents[1] / 'csrc'}", "--expt-relaxed-constexpr",
        f"-gencode=arch=compute_{arch},code=sm_{arch}", f"-DPLAB_SWEEP_ELEMENT={ELEMENTS[dtype]}",
        "-shared", "-Xcompiler", "-fPIC", "-cudart", "static",
        "-o", str(target), str(HERE / "layer_norm_gelu_sweep.cu"),
        str(HERE.parents[1] / "csrc" / "cuda" / "launch.cpp"),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return target


class Sweep:
    """The configurations in the library, as functions without arguments on one set of tensors."""

    def __init__(self, path: Path, rows: int, d: int, dtype: torch.dtype) -> None:
        self.library = ctypes.CDLL(str(path))
        for name in ("sweep_name", "sweep_error"):
            getattr(self.library, name).restype = ctypes.c_char_p
        for name in ("sweep_forward", "sweep_backward"):
            getattr(self.library, name).restype = ctypes.c_int64
        self.rows, self.d = rows, d
        generator = torch.Generator("cuda").manual_seed(3)

        def normal(*size: int, mean: float = 0.0, scale: float = 1.0) -> Tensor:
            return torch.empty(*size, device="cuda", dtype=dtype).normal_(mean, scale, generator=generator)

        self.x, self.dy = normal(rows, d, mean=0.5, scale=2.0), normal(rows, d)
        self.weight, self.bias = normal(d, mean=1.0, scale=0.3), normal(d, scale=0.3)
        self.y, self.dx = torch.empty_like(self.x), torch.empty_like(self.x)
        self.dweight, self.dbias = torch.empty_like(self.weight), torch.empty_like(self.bias)
        self.mean, self.rstd = torch.empty(2, rows, device="cuda")
        self.partial = torch.empty(0, device="cuda")

    def _pointers(self, *tensors: Tensor) -> list[ctypes.c_void_p]:
        return [ctypes.c_void_p(t.data_ptr()) for t in tensors]

    def _tail(self) -> tuple[ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]:
        stream = torch.cuda.current_stream().cuda_stream
        return ctypes.c_int64(self.rows), ctypes.c_int64(self.d), ctypes.c_void_p(stream)

    def _checked(self, status: int) -> int:
        if status < 0:
            raise RuntimeError(self.library.sweep_error().decode())
        return status

    def forward(self, index: int, waves: int, interleaved: int) -> int:
        tensors = (self.x, self.weight, self.bias, self.y, self.mean, self.rstd)
        return self._checked(
            self.library.sweep_forward(index, waves, interleaved, *self._pointers(*tensors), *self._tail())
        )

    def backward(self, index: int, waves: int, interleaved: int, plan_only: bool = False) -> int:
        tensors = (self.dy, self.x, self.weight, self.bias, self.mean, self.rstd)
        outputs = (self.dx, self.dweight, self.dbias)
        scratch = ctypes.c_void_p(None if plan_only else self.partial.data_ptr())
        return self._checked(
            self.library.sweep_backward(
                index, waves, interleaved, *self._pointers(*tensors, *outputs), scratch, *self._tail()
            )
        )

    def variants(self, direction: str, waves: list[int]) -> dict[str, Callable[[], object]]:
        """Every configuration that can do these rows, by name."""
        found: dict[str, Callable[[], object]] = {}
        for index in range(self.library.sweep_count()):
            if bool(self.library.sweep_is_forward(index)) != (direction == "forward"):
                continue
            direct = "stages 0" in self.library.sweep_name(index).decode()
            for count, interleaved in itertools.product(waves, (0, 1)):
                if direct != (count > 8) or (direct and interleaved):
                    continue  # one row a block, or a few waves of blocks that have many each
                order = "every nth row" if interleaved else "runs"
                name = f"{self.library.sweep_name(index).decode()}, waves {count}, {order}"
                if direction == "forward":
                    if self.forward(index, count, interleaved):
                        found[name] = partial(self.forward, index, count, interleaved)
                else:
                    blocks = self.backward(index, count, interleaved, plan_only=True)
                    if blocks and self.partial.numel() < blocks * 2 * self.d:
                        self.partial = torch.empty(blocks * 2 * self.d, device="cuda")
                    if blocks:
                        found[name] = partial(self.backward, index, count, interleaved)
        return found

    def check(self, name: str, call: Callable[[], object], direction: str) -> None:
        """Raises unless the first rows, and for the backward all column sums, are what float64 gives."""
        rows = min(self.rows, 64)
        outputs = (self.y,) if direction == "forward" else (self.dx, self.dweight, self.dbias)
        for output in outputs:
            output.fill_(float("nan"))
        call()
        leaves = [t.double().requires_grad_() for t in (self.x[:rows], self.weight, self.bias)]
        y = reference(*leaves)
        if direction == "forward":
            pairs = [(self.y[:rows], y)]
        else:
            pairs = [(self.dx[:rows], torch.autograd.grad(y, leaves[0], self.dy[:rows].double())[0])]
            pairs += list(zip((self.dweight, self.dbias), self.column_sums, strict=True))
        for got, true in pairs:
            error = ((got.double() - true).norm() / true.norm()).item()
            if not error < 4 * torch.finfo(got.dtype).eps or bool(torch.isnan(outputs[0]).any()):
                raise RuntimeError(f"{name}: relative error {error:.2e}")

    def remember_column_sums(self) -> None:
        """dweight and dbias in float64, by parts of the rows, so that the intermediates fit."""
        sums = [torch.zeros(self.d, device="cuda", dtype=torch.float64) for _ in range(2)]
        step = max(1, (1 << 24) // self.d)
        for begin in range(0, self.rows, step):
            part = slice(begin, begin + step)
            leaves = [t.double().requires_grad_() for t in (self.x[part], self.weight, self.bias)]
            found = torch.autograd.grad(reference(*leaves), leaves[1:], self.dy[part].double())
            for total, one in zip(sums, found, strict=True):
                total += one
        self.column_sums = sums


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", choices=ELEMENTS, default="bfloat16")
    parser.add_argument("--widths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--elements", type=int, default=1 << 28)
    parser.add_argument("--waves", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--top", type=int, default=6, help="configurations to print for each width")
    parser.add_argument(
        "--library", type=Path, help="layer_norm_gelu_sweep.cu, already compiled for this dtype"
    )
    parser.add_argument("--output", type=Path, help="append JSON lines here")
    options = parser.parse_args()

    results = ResultsFile(options.output, machine())
    library = options.library or build(options.dtype)
    for d in options.widths:
        sweep = Sweep(library, options.elements // d, d, getattr(torch, options.dtype))
        sweep.remember_column_sums()
        for direction, passes in (("forward", 2), ("backward", 3)):
            waves = options.waves if direction == "forward" else [w for w in options.waves if w <= 2]
            variants = sweep.variants(direction, waves)
            for name, call in list(variants.items()):
                try:
                    sweep.check(name, call, direction)
                except RuntimeError as error:
                    print("WRONG", error, flush=True)
                    del variants[name]
            target = torch.empty_like(sweep.x)
            variants["copy"] = partial(target.copy_, sweep.x)
            timings = compare(variants, rounds=options.rounds, warmup_s=0.01, cold=False)
            shares = {n: passes / 2 * ratio(timings["copy"], t) for n, t in timings.items() if n != "copy"}
            case = {"d": d, "rows": sweep.rows, "dtype": options.dtype, "direction": direction}
            for name, share in shares.items():
                results.add("layer_norm_gelu_sweep", case, name, "share_of_copy", share, "1")
            print(f"{options.dtype} d {d} {direction}: {len(shares)} configurations, all right", flush=True)
            for name in sorted(shares, key=lambda n: -shares[n])[: options.top]:
                print(f"    {shares[name]:.3f}  {name}", flush=True)
        del sweep
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    run_script(main)
