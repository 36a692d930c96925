# SPDX-License-Identifier: Apache-2.0
"""heavy_layer "fast" against its bare GEMMs, eager PyTorch, torch.compile and cuBLASLt's epilogues.

    python benchmarks/heavy_layer.py -o benchmarks/results/heavy_layer.jsonl
    python benchmarks/heavy_layer.py --shapes 4096x512 --dtypes bfloat16 --modes default
    python benchmarks/heavy_layer.py --prepare            only fill torch.compile's cache, which takes longest

GPU time of calls in a CUDA graph, all providers in turns. `products` are the GEMMs of the folded form,
by torch, alone and into memory that is there already: their share of the op's time is what bias, tanh,
their backward and the sums over rows leave of it, and above 1 where the op's own products are quicker.
float32 is multiplied as float32, tf32 is float32 multiplied as TF32. The peers:
  eager               the formula
  eager, folded       tanh(addmm(b, x, w1 w2 w3)): the bias in cuBLASLt's epilogue
  compile MODE, ...   either of these, compiled; max-autotune the second alone, which needs fewer products
  gelu epilogue       _addmm_activation: bias and GELU in the epilogue, so not the same function, and
                      forward only; what a library's epilogue costs (there is none with tanh)
Every provider of the function is held against float64 first: `error_over_eager` is how far it is from it, in
units of eager's own distance, and of the gradients' the worst. Ours must stay below four; a peer that does
not is timed all the same, and that line says so.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from script import run_script, say
from torch import Tensor

from profiling_lab.measure import ResultsFile, compare, machine, ratio
from profiling_lab.ops.heavy_layer import heavy_layer, reference

BENCHMARK = "heavy_layer"
SHAPES = ("4096x512", "8192x4096")
"""The demo's (batch x tokens, d_model), and one whose products fill the GPU."""
DTYPES = ("bfloat16", "float16", "tf32", "float32")
MODES = ("default", "max-autotune-no-cudagraphs")

Function = Callable[..., Tensor]
Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Inputs:
    x: Tensor
    w1: Tensor
    w2: Tensor
    w3: Tensor
    b: Tensor
    dy: Tensor

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return self.x, self.w1, self.w2, self.w3, self.b


def folded(x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, b: Tensor) -> Tensor:
    """The formula with the matrices multiplied first."""
    return torch.tanh(torch.addmm(b, x, w1 @ w2 @ w3))


def providers(modes: list[str]) -> dict[str, Function]:
    found: dict[str, Function] = {"fast": heavy_layer, "eager": reference, "eager, folded": folded}
    for mode in modes:
        if mode == "default":
            found[f"compile {mode}"] = torch.compile(reference, mode=mode, dynamic=False)
        found[f"compile {mode}, folded"] = torch.compile(folded, mode=mode, dynamic=False)
    return found


def make_inputs(rows: int, d: int, dtype: torch.dtype) -> Inputs:
    """Random, made on the GPU."""
    generator = torch.Generator("cuda").manual_seed(1)

    def normal(*size: int, scale: float = 1.0) -> Tensor:
        return torch.empty(*size, device="cuda", dtype=dtype).normal_(0, scale, generator=generator)

    w1, w2, w3 = (normal(d, d, scale=d**-0.5) for _ in range(3))
    return Inputs(normal(rows, d), w1, w2, w3, normal(d, scale=0.5), normal(rows, d))


@contextmanager
def forward_of_captures() -> Iterator[None]:
    """A backward runs on the stream of its forward, so one that is to be captured needs a forward on the
    stream on which captures are made.
    """
    torch.cuda.graph(torch.cuda.CUDAGraph())  # makes that stream where it is missing
    stream = torch.cuda.graph.default_capture_stream
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def backward_of(function: Function, inputs: Inputs) -> Call:
    """The backward of one forward, to be called any number of times."""
    leaves = [t.detach().requires_grad_() for t in inputs.arguments]
    with forward_of_captures():
        y = function(*leaves)
    return lambda: torch.autograd.grad(y, leaves, inputs.dy, retain_graph=True)


def gradients_of_square(function: Function, inputs: Inputs, dtype: torch.dtype) -> list[Tensor]:
    """The output and the gradients of the sum of its squares, computed in dtype."""
    leaves = [t.detach().to(dtype).requires_grad_() for t in inputs.arguments]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), leaves)]


def errors_over_eager(everyone: dict[str, Function], inputs: Inputs) -> dict[str, dict[str, float]]:
    """By provider and direction, the distance from float64 in units of the formula's own."""
    truth = gradients_of_square(reference, inputs, torch.float64)

    def errors(function: Function) -> list[float]:
        found = gradients_of_square(function, inputs, inputs.x.dtype)
        return [(got.double() - true).norm().item() for got, true in zip(found, truth, strict=True)]

    allowed, over = errors(reference), {}
    for name, function in everyone.items():
        y, *gradients = (error / own for error, own in zip(errors(function), allowed, strict=True))
        over[name] = {"forward": y, "backward": max(gradients)}
    if not max(over["fast"].values()) <= 4:
        raise RuntimeError(f"fast is further from float64 than the formula itself, by factors {over['fast']}")
    return over


def products_forward(inputs: Inputs) -> Call:
    """With more rows than columns, as here, the matrices go first."""
    x, w1, w2, w3 = inputs.x, inputs.w1, inputs.w2, inputs.w3
    w23, m, z = torch.empty_like(w1), torch.empty_like(w1), torch.empty_like(x)

    def call() -> None:
        torch.mm(w2, w3, out=w23)
        torch.mm(w1, w23, out=m)
        torch.mm(x, m, out=z)

    return call


def products_backward(inputs: Inputs, keeps_m: bool) -> Call:
    """The forward has kept W2 W3, and W1 W2 W3 unless it was multiplied as TF32."""
    x, w1, w2, w3, g = inputs.x, inputs.w1, inputs.w2, inputs.w3, inputs.dy
    w23 = w2 @ w3
    m = w1 @ w23
    dm, w1_dm, dw1, dw2, dw3 = (torch.empty_like(w1) for _ in range(5))
    dx = torch.empty_like(x)

    def call() -> None:
        if not keeps_m:
            torch.mm(w1, w23, out=m)
        torch.mm(x.t(), g, out=dm)
        torch.mm(g, m.t(), out=dx)
        torch.mm(dm, w23.t(), out=dw1)
        torch.mm(w1.t(), dm, out=w1_dm)
        torch.mm(w1_dm, w3.t(), out=dw2)
        torch.mm(w2.t(), w1_dm, out=dw3)

    return call


def gelu_epilogue(inputs: Inputs) -> Call:
    x, w1, w2, w3, b = inputs.arguments
    return lambda: torch._addmm_activation(b, x, w1 @ w2 @ w3, use_gelu=True)


def prepare(
    everyone: dict[str, Function], rows: int, d: int, dtype: str
) -> tuple[Inputs, dict[str, dict[str, float]]]:
    """Inputs on which everybody has run once, in both directions, and their errors there."""
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    inputs = make_inputs(rows, d, torch.float32 if dtype == "tf32" else getattr(torch, dtype))
    over = errors_over_eager(everyone, inputs)
    with torch.no_grad():  # compiled code of its own
        for function in everyone.values():
            function(*inputs.arguments)
    torch.cuda.empty_cache()
    return inputs, over


def measure(
    results: ResultsFile, everyone: dict[str, Function], rows: int, d: int, dtype: str, rounds: int
) -> None:
    inputs, over = prepare(everyone, rows, d, dtype)
    forward: dict[str, Call] = {"products": products_forward(inputs)}
    forward |= {name: partial(function, *inputs.arguments) for name, function in everyone.items()}
    forward["gelu epilogue"] = gelu_epilogue(inputs)
    backward: dict[str, Call] = {"products": products_backward(inputs, dtype != "tf32")}
    backward |= {name: backward_of(function, inputs) for name, function in everyone.items()}
    for direction, variants in (("forward", forward), ("backward", backward)):
        calls = max(1, min(20, 2**25 // (rows * d)))
        with torch.set_grad_enabled(direction == "backward"):
            timings = compare(
                variants, mode="graph", rounds=rounds, warmup_s=0.02, cold=False, calls_per_sample=calls
            )
        case: dict[str, str | int | float | bool] = {
            "rows": rows,
            "d": d,
            "dtype": dtype,
            "direction": direction,
        }
        for name, timing in timings.items():
            results.add_timing(BENCHMARK, case, name, timing)
        for name, error in over.items():
            results.add(BENCHMARK, case, name, "error_over_eager", error[direction], "1")
        share = ratio(timings["products"], timings["fast"])
        results.add(BENCHMARK, case, "fast", "share_of_products", share, "1")
        each = "  ".join(f"{name} {timing.median_ns / 1e3:.2f}" for name, timing in timings.items())
        print(f"{rows} x {d} {dtype} {direction}: share {share:.3f} | us: {each}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", "-o", type=Path, help="append JSON lines here (default: print a summary only)"
    )
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="ROWSxD")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--modes", nargs="*", choices=MODES, default=MODES, help="of torch.compile")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--prepare",
        action="store_true",
        help="time nothing, only fill torch.compile's cache; several such processes may run concurrently",
    )
    args = parser.parse_args()

    import torch._dynamo
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False  # a backward is repeated here, with retain_graph
    torch._dynamo.config.cache_size_limit = 64
    results = ResultsFile(args.output, machine())
    for shape in args.shapes:
        rows, d = map(int, shape.split("x"))
        for dtype in args.dtypes:
            if args.prepare:
                _, over = prepare(providers(args.modes), rows, d, dtype)
                say(f"{rows} x {d} {dtype}: errors over eager's {over}")
            else:
                measure(results, providers(args.modes), rows, d, dtype, args.rounds)
            torch._dynamo.reset()
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    run_script(main)
