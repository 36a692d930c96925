# SPDX-License-Identifier: Apache-2.0
"""A file like torch.profiler's of a training run with stacks, of any size, with the GPU time per line known.

python benchmarks/analysis/chrome_trace_generator.py trace.json --mib 1000 --seed 7

writes trace.json and trace.truth.json: per line `[forward_ns, backward_ns, kernels]`. The text has
the layout of torch 2.x: one key per line, two thirds of the events Python functions, operators with their
shapes, flows between launch and kernel and between forward and backward, three threads.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

BASE_NS = 1_790_857_026_000_000_000
PID, MAIN, ENGINE, LOADER = 4711, 4711, 4802, 4810
_MODULE_PY = "torch/nn/modules/module.py"
_KERNELS = {
    "mm": "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_{n}x128_32x5_nn_align8>(Params)",
    "norm": "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, {n}>(int, float)",
    "pointwise": "void at::native::vectorized_elementwise_kernel<{n}, at::native::GeluFunctor>(int, Array)",
    "adam": "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdam, {n}>(Metadata)",
}


@dataclass
class Truth:
    """What a reader must find."""

    events: int = 0
    python_functions: int = 0
    operations: int = 0
    gpu_ns: int = 0
    lines: dict[str, list[int]] = field(default_factory=dict)
    """forward_ns, backward_ns, kernels by `file:line`"""

    def charge(self, line: str, phase: int, duration_ns: int) -> None:
        row = self.lines.setdefault(line, [0, 0, 0])
        row[phase] += duration_ns
        row[2] += 1
        self.operations += 1
        self.gpu_ns += duration_ns


@dataclass
class Program:
    """A training loop that is recorded while it runs; only its clock is simulated."""

    out: TextIO
    dice: random.Random
    truth: Truth = field(default_factory=Truth)
    now_ns: int = 4_386_688_496_000_000
    gpu_free_ns: int = 0
    sequence: int = 0
    correlation: int = 0
    python_id: int = 0
    written: int = 0
    parents: list[int] = field(default_factory=list)
    own_lines: list[str] = field(default_factory=list)
    to_backward: list[tuple[str, int, str, int]] = field(default_factory=list)

    def event(self, head: str, start_ns: int, tail: str) -> None:
        text = f'  {{\n    {head},\n    "ts": {start_ns // 1000}.{start_ns % 1000:03d}{tail}\n  }},\n'
        self.written += self.out.write(text)
        self.truth.events += 1

    def slice(
        self,
        cat: str,
        name: str,
        tid: int,
        start_ns: int,
        end_ns: int,
        arguments: dict[str, object],
        pid: int = PID,
    ) -> None:
        """A complete event; the values of its arguments are JSON."""
        took = end_ns - start_ns
        args = ",\n".join(f'      "{name}": {value}' for name, value in arguments.items())
        self.event(
            f'"ph": "X",\n    "cat": "{cat}",\n    "name": "{name}",\n    "pid": {pid},\n    "tid": {tid}',
            start_ns,
            f',\n    "dur": {took // 1000}.{took % 1000:03d},\n    "args": {{\n{args}\n    }}',
        )

    def flow(self, phase: str, number: int, tid: int, at_ns: int, cat: str, pid: int = PID) -> None:
        bind = ',\n    "bp": "e"' if phase == "f" else ""
        self.event(
            f'"ph": "{phase}",\n    "id": {number},\n    "pid": {pid},\n    "tid": {tid}',
            at_ns,
            f',\n    "cat": "{cat}",\n    "name": "{cat}"{bind}',
        )

    def pass_time(self, least_ns: int = 400) -> None:
        self.now_ns += self.dice.randint(least_ns, 3 * least_ns)

    @contextmanager
    def python(self, name: str, own: str = "") -> Iterator[None]:
        """A Python function; `own` is its line if it is the user's."""
        self.python_id += 1
        number, start_ns = self.python_id, self.now_ns
        parent = str(self.parents[-1]) if self.parents else "null"
        self.parents.append(number)
        if own:
            self.own_lines.append(own)
        self.pass_time()
        yield
        self.pass_time()
        if own:
            self.own_lines.pop()
        self.parents.pop()
        self.truth.python_functions += 1
        self.slice(
            "python_function",
            name,
            MAIN,
            start_ns,
            self.now_ns,
            {"Python parent id": parent, "Python id": number, "Ev Idx": number + 90_000},
        )

    def small_calls(self, count: int) -> None:
        for i in range(count):
            place = self.dice.randrange(1 << 20) << 4
            names = (
                f"{_MODULE_PY}(1915): __getattr__",
                f"<built-in method get of dict object at 0x7f{place:010x}>",
                "<built-in function len>",
                "torch/_jit_internal.py(102): is_scripting",
                f"<built-in method __enter__ of torch._C.DisableTorchFunction object at 0x7f{place:010x}>",
            )
            with self.python(names[i % len(names)]):
                pass

    @contextmanager
    def module(self, kind: str, number: int, forward: str, own: str = "") -> Iterator[None]:
        with (
            self.python(f"nn.Module: {kind}_{number}"),
            self.python(f"{_MODULE_PY}(1775): _wrapped_call_impl"),
            self.python(f"{_MODULE_PY}(1786): _call_impl"),
        ):
            self.small_calls(10)
            with self.python(forward, own):
                yield

    def launch(self, kernel: str, tid: int, line: str, phase: int) -> None:
        """A launch, and its kernel as soon as the GPU has done what it has."""
        self.correlation += 1
        start_ns = self.now_ns
        self.pass_time(1500)
        base, width = kernel, self.dice.choice((64, 128, 256))
        self.slice(
            "cuda_runtime",
            "cudaLaunchKernel",
            tid,
            start_ns,
            self.now_ns,
            {"External id": self.correlation, "cbid": 211, "correlation": self.correlation},
        )
        self.flow("s", self.correlation, tid, start_ns, "ac2g")
        begin = max(self.gpu_free_ns, self.now_ns + 2000)
        took = self.dice.randint(1_000, 200_000)
        self.gpu_free_ns = begin + took
        self.slice(
            "kernel",
            _KERNELS[base].format(n=width),
            7,
            begin,
            begin + took,
            {
                "External id": self.correlation,
                "queued": 0,
                "device": 0,
                "context": 1,
                "stream": 7,
                "correlation": self.correlation,
                "registers per thread": width // 2,
                "shared memory": 0,
                "blocks per SM": 1.939394,
                "warps per SM": 7.757576,
                "grid": [256, 1, 1],
                "block": [128, 1, 1],
                "est. achieved occupancy %": 12,
            },
            pid=0,
        )
        self.flow("f", self.correlation, 7, begin, "ac2g", pid=0)
        self.truth.charge(line, phase, took)

    def operator(self, name: str, kernel: str, node: str = "") -> None:
        """An operator of autograd: a composite one, the one that makes the node, and its kernel."""
        args: dict[str, object] = {
            "External id": self.sequence,
            "Record function id": 0,
            "Concrete Inputs": '["", "", ""]',
            "Input type": '["c10::BFloat16", "c10::BFloat16", "c10::BFloat16"]',
            "Input Strides": [[4194304, 4096, 1], [1, 4096], [1]],
            "Input Dims": [[8 * self.dice.randint(1, 4), 1024, 4096], [4096, 4096], [4096]],
            "Ev Idx": self.sequence,
        }
        if node:
            args |= {"Sequence number": self.sequence, "Fwd thread id": 0}
        outer_ns = self.now_ns
        self.pass_time(300)
        start_ns, line = self.now_ns, self.own_lines[-1]
        self.pass_time(300)
        self.launch(kernel, MAIN, line, phase=0)
        self.pass_time(200)
        self.slice("cpu_op", f"aten::{name}_impl", MAIN, start_ns, self.now_ns, args)
        self.pass_time(200)
        self.slice("cpu_op", f"aten::{name}", MAIN, outer_ns, self.now_ns, args)
        if node:
            self.flow("s", self.sequence, MAIN, start_ns, "fwdbwd")
            self.to_backward.append((node, self.sequence, line, start_ns))
            self.sequence += 1

    def layer(self, kind: str, number: int, function: str, op: str, kernel: str, node: str) -> None:
        with self.module(kind, number, f"torch/nn/modules/{function}"):
            self.small_calls(22)
            with self.python(f"<built-in function {op}>"):
                self.operator(op, kernel, node)

    def block(self, number: int) -> None:
        with self.module("Block", number, "model.py(52): forward", "model.py:52"):
            self.layer(
                "LayerNorm",
                2 * number,
                "normalization.py(229): forward",
                "layer_norm",
                "norm",
                "NativeLayerNormBackward0",
            )
            with self.python("model.py(20): attend", "model.py:20"):
                self.layer("Linear", 3 * number, "linear.py(130): forward", "linear", "mm", "AddmmBackward0")
                with self.python("<built-in function scaled_dot_product_attention>"):
                    self.operator("scaled_dot_product_attention", "mm", "ScaledDotProductBackward0")
            with self.python("model.py(35): mlp", "model.py:35"):
                self.layer(
                    "Linear", 3 * number + 1, "linear.py(130): forward", "linear", "mm", "AddmmBackward0"
                )
                self.layer(
                    "GELU", number, "activation.py(816): forward", "gelu", "pointwise", "GeluBackward0"
                )
                self.layer(
                    "Linear", 3 * number + 2, "linear.py(130): forward", "linear", "mm", "AddmmBackward0"
                )
            with self.python("<built-in method add of Tensor object at 0x7f3201a0>"):
                self.operator("add", "pointwise", "AddBackward0")

    def backward(self) -> None:
        """The engine evaluates the nodes on its thread, the last one first."""
        for node, sequence, line, _ in reversed(self.to_backward):
            number: dict[str, object] = {
                "External id": sequence,
                "Sequence number": sequence,
                "Fwd thread id": 1,
                "Ev Idx": sequence,
            }
            engine_ns = self.now_ns
            self.pass_time(300)
            node_ns = self.now_ns
            self.pass_time(300)
            self.launch("mm" if node.startswith("Addmm") else "pointwise", ENGINE, line, phase=1)
            self.slice("cpu_op", node, ENGINE, node_ns, self.now_ns, number)
            self.flow("f", sequence, ENGINE, node_ns, "fwdbwd")
            self.pass_time(200)
            self.slice(
                "cpu_op",
                f"autograd::engine::evaluate_function: {node}",
                ENGINE,
                engine_ns,
                self.now_ns,
                number,
            )
        self.to_backward.clear()

    def step(self, number: int) -> None:
        start_ns = self.now_ns
        with self.python("train.py(61): train_step", "train.py:61"):
            with self.python("torch/utils/data/dataloader.py(732): __next__"):
                self.small_calls(5)
            with self.module("Net", 0, "model.py(88): forward", "model.py:88"):
                for block in range(12):
                    self.block(block)
            with (
                self.python("torch/_tensor.py(592): backward"),
                self.python("torch/autograd/graph.py(824): _engine_run_backward"),
            ):
                self.backward()
            with self.python("torch/optim/adamw.py(214): step"):
                self.small_calls(30)
                for _ in range(4):
                    self.operator("_fused_adamw_", "adam")
        self.slice(
            "user_annotation",
            f"ProfilerStep#{number}",
            MAIN,
            start_ns,
            self.now_ns,
            {"External id": number, "Ev Idx": number},
        )
        self.slice(
            "cpu_op",
            "enumerate(DataLoader)#_pin_memory",
            LOADER,
            start_ns,
            self.now_ns - 1000,
            {"External id": number, "Ev Idx": number},
        )


_HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150110011392,
      "computeMajor": 9, "computeMinor": 0, "warpSize": 32, "numSms": 132
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
  "with_stack": 1, "record_shapes": 1, "with_modules": 1,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": %d,
  "traceEvents": [
"""
_TAIL = """  {
    "ph": "i",
    "name": "Record Window End",
    "pid": "",
    "tid": "",
    "ts": 9223372036854775.807,
    "s": "g"
  }
  ],
  "traceName": "generated.json"
}
"""


def generate(path: Path, size_bytes: int, seed: int = 7) -> Truth:
    """Write whole steps until the file has about `size_bytes` (at least one step)."""
    with path.open("w", encoding="ascii", buffering=1 << 20) as out:
        out.write(_HEAD % BASE_NS)
        program = Program(out, random.Random(seed))
        number = 0
        while number == 0 or program.written < size_bytes:
            program.step(number)
            number += 1
        out.write(_TAIL)
    return program.truth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--mib", type=float, default=1000)
    parser.add_argument("--seed", type=int, default=7)
    wanted = parser.parse_args()
    truth = generate(wanted.out, int(wanted.mib * 2**20), wanted.seed)
    wanted.out.with_suffix(".truth.json").write_text(json.dumps(vars(truth), indent=1))
    share = truth.python_functions / truth.events
    print(f"{truth.events:,} events ({share:.0%} Python functions), {truth.operations:,} kernels")


if __name__ == "__main__":
    main()
