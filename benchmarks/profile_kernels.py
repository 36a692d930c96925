# SPDX-License-Identifier: Apache-2.0
"""A few calls of one attention, watched by torch.profiler (a table and a Chrome trace) or by another tool.

    python benchmarks/profile_kernels.py --impl flash --seq-len 512
    nsys profile --trace=cuda,nvtx -o report python benchmarks/profile_kernels.py --impl tiled
    ncu --set full -o report python benchmarks/profile_kernels.py --impl flash
    profiling-lab record -o run.sqlite benchmarks/profile_kernels.py --impl naive

--impl naive, tiled and ladder-flash are the kernels of csrc/ops/ladder_attention, flash is flash_attention;
the rest are PyTorch's backends and whatever peer is installed (--list). Each call is a step in an NVTX range
"<impl> step <n>", with "forward" and, with --backward, "backward" inside.

Only one tool can have the GPU's profiling interface. Where another has loaded itself into this process, as
nsys, ncu and `profiling-lab record` do, the calls run and torch.profiler stays off; --torch-profiler decides.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from attention_cases import problem
from attention_providers import Attention, as_named, inputs, providers
from torch.profiler import ProfilerActivity, profile, record_function

from profiling_lab.recording.other_profilers import held_by


def watched() -> str | None:
    """Why torch.profiler cannot have the GPU here; None if it can."""
    if "profiling_lab._recorder" in sys.modules:
        return "profiling-lab record has loaded its recorder into this process"
    return held_by()


@contextmanager
def range_named(name: str, cuda: bool) -> Iterator[None]:
    """A range that torch.profiler shows, and on the GPU an NVTX range that the other tools show."""
    with record_function(name):
        if cuda:
            torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            if cuda:
                torch.cuda.nvtx.range_pop()


def warmed_up(name: str, function: Attention, options: argparse.Namespace) -> Callable[[int], None]:
    cuda = options.device.startswith("cuda")
    one = problem(
        "forward", options.head_dim, options.seq_len, options.causal,
        options.batch, options.heads, options.kv_heads, options.dtype,
    )  # fmt: skip
    *leaves, dout = inputs(one, options.device)
    leaves = [x.requires_grad_(options.backward) for x in leaves]

    def step(number: int) -> None:
        with range_named(f"{name} step {number}", cuda):
            with range_named("forward", cuda):
                out = forward()
            if options.backward:
                with range_named("backward", cuda):
                    backward(out)
            if cuda:
                torch.cuda.synchronize()  # a step's kernels lie inside its range

    def forward() -> torch.Tensor:
        with as_named(name):
            return function(*leaves, options.causal)

    def backward(out: torch.Tensor) -> None:
        if options.backward:
            with as_named(name, backward=True):
                torch.autograd.grad(out, leaves, dout)

    with range_named("warm-up", cuda):
        for _ in range(options.warmup):
            backward(forward())
        if cuda:
            torch.cuda.synchronize()
    return step


def write_profile(step: Callable[[int], None], options: argparse.Namespace) -> None:
    cuda = options.device.startswith("cuda")
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
    with profile(activities=activities, record_shapes=True, profile_memory=True) as recorded:
        for number in range(options.steps):
            step(number)
    order = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    print(recorded.key_averages().table(sort_by=order, row_limit=options.limit, max_name_column_width=70))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    recorded.export_chrome_trace(str(options.output))
    print(f"{options.output}: open it in ui.perfetto.dev, or ask profiling-lab kernels {options.output}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--impl", default="flash", help="whose attention; --list names them (default: flash)")
    parser.add_argument("--list", action="store_true", help="name the implementations, or say why not")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, help="fewer than heads: grouped queries")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--backward", action="store_true", help="the gradients too")
    parser.add_argument("--dtype", default=None, help="default: bfloat16 on CUDA, float32 on the CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=3, help="calls that are looked at")
    parser.add_argument("--warmup", type=int, default=3, help="calls before, in one range")
    parser.add_argument("--torch-profiler", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--limit", type=int, default=15, help="rows of the table")
    parser.add_argument("--output", type=Path, help="the Chrome trace (default: trace_<impl>.json)")
    options = parser.parse_args()
    options.dtype = options.dtype or ("bfloat16" if options.device.startswith("cuda") else "float32")
    options.output = options.output or Path(f"trace_{options.impl}.json")

    everyone = providers()
    if options.list:
        for name, function in everyone.items():
            print(f"{name:<28}{function if isinstance(function, str) else 'available'}")
        return 0
    function = everyone.get(options.impl, f"there are {', '.join(everyone)}")
    if isinstance(function, str):
        print(f"no implementation {options.impl}: {function}", file=sys.stderr)
        return 2
    step = warmed_up(options.impl, function, options)
    reason = watched()
    if options.torch_profiler == "on" or (options.torch_profiler == "auto" and reason is None):
        write_profile(step, options)
        return 0
    for number in range(options.steps):
        step(number)
    if options.torch_profiler == "auto":
        print(f"{options.steps} steps ran without torch.profiler: {reason}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
