# SPDX-License-Identifier: Apache-2.0
"""What the recorder's own callbacks take per launch, without a GPU: the tests' fake stands in for CUPTI.

    python benchmarks/recorder/recorder_callback.py                    launches from stacks of some depths
    python benchmarks/recorder/recorder_callback.py --modules          from nested modules as torch calls them
    python benchmarks/recorder/recorder_callback.py --step             from a training step of transformers

Nanoseconds per launch: two callbacks of the runtime's call, two of the driver's call that it makes.

Without an option each launch has the stack of the one before. With --modules the stacks are about 40 frames
deep and differ from launch to launch; this needs no torch, so it runs on every Python. With --step a small
GPT-2 of transformers makes its training steps on the CPU, and each operator launches: torch has used the
caches in between. Launches of backward are not counted: on a GPU they come from a thread without Python
frames.

Other memory is read and other code run before each launch, to see how much the caches matter.

A figure is the mean over the launches of a step (or over 100 in a row) of each one's lower quartile in all
steps: what else the machine does is in the upper ones.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from profiling_lab import _recorder

REPO = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the recorder's callbacks alone.")
    parser.add_argument("--modules", action="store_true", help="launches of nested modules")
    parser.add_argument("--step", action="store_true", help="launches of a training step")
    parser.add_argument("--depths", type=int, nargs="+", default=[10, 40], help="Python frames (10 40)")
    parser.add_argument(
        "--read-kb", type=int, nargs="+", default=[0, 256, 4096], help="other memory and code (0 256 4096)"
    )
    parser.add_argument("--steps", type=int, default=50, help="for each figure (50)")
    parser.add_argument("--without", nargs="+", default=[], choices=("stacks", "autograd"))
    args = parser.parse_args()
    with TemporaryDirectory(prefix="profiling-lab-bench-") as folder:
        library = Path(folder) / "libfake_cupti.so"
        fake = build_fake(library)
        os.environ["PROFILING_LAB_CUPTI"] = str(library)
        print("launches        other memory   ns per launch")
        measure = measure_step if args.step else measure_modules if args.modules else measure_depths
        measure(args, fake, Path(folder))
    return 0


def build_fake(path: Path) -> ctypes.CDLL:
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    flags = ["-std=c++20", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{REPO / 'csrc'}"]
    source = REPO / "tests" / "recorder" / "fake_cupti" / "fake_cupti.cpp"
    subprocess.run([compiler, *flags, str(source), "-o", str(path)], check=True)
    fake = ctypes.CDLL(str(path))
    fake.fake_timed_launch.argtypes = (ctypes.c_uint64,)
    fake.fake_timed_launch.restype = ctypes.c_uint64
    return fake


def show(name: str, kilobytes: int, steps: list[list[int]]) -> None:
    """`steps`: picoseconds of the launches of each step."""
    nanoseconds = np.quantile(np.array(steps), 0.25, axis=0).mean() / 1000
    print(f"{name:15} {kilobytes:9} KB {nanoseconds:15.0f}", flush=True)


def start(args: argparse.Namespace, folder: Path) -> bool:
    """Whether stacks are recorded."""
    stacks = "stacks" not in args.without
    _recorder.start(
        spool_path=str(folder / "spool"),
        cupti_override=os.environ["PROFILING_LAB_CUPTI"],
        python_stacks=stacks,
        nvtx=False,
    )
    return stacks


def measure_depths(args: argparse.Namespace, fake: ctypes.CDLL, folder: Path) -> None:
    stacks = start(args, folder)
    for depth in args.depths if stacks else [1]:
        for kilobytes in args.read_kb:

            def step(kilobytes: int = kilobytes) -> list[int]:
                return [fake.fake_timed_launch(kilobytes << 10) for _ in range(100)]

            show(f"{depth} frames", kilobytes, [called_from(depth - 3, step) for _ in range(args.steps)])
    _recorder.stop({})


def called_from(depth: int, step: Callable[[], list[int]]) -> list[int]:
    """Launches `depth` frames below the caller's."""
    return called_from(depth - 1, step) if depth > 1 else step()


class Module:
    """As deep in Python as torch's: __call__, _call_impl and forward."""

    def __init__(self, launch: Callable[[], int], parts: list[Module], launches: int = 0) -> None:
        self.launch, self.parts, self.launches = launch, parts, launches

    def __call__(self, times: list[int]) -> None:
        return self._call_impl(times)

    def _call_impl(self, times: list[int]) -> None:
        return self.forward(times)

    def forward(self, times: list[int]) -> None:
        for _ in range(self.launches):
            times.append(self.operator())
        for part in self.parts:
            part(times)
        if self.parts:
            times.append(self.operator())

    def operator(self) -> int:
        return self.launch()


def measure_modules(args: argparse.Namespace, fake: ctypes.CDLL, folder: Path) -> None:
    start(args, folder)
    for kilobytes in args.read_kb:

        def launch(kilobytes: int = kilobytes) -> int:
            return int(fake.fake_timed_launch(kilobytes << 10))

        def group(*parts: Module, launch: Callable[[], int] = launch) -> Module:
            return Module(launch, list(parts))

        def leaves(count: int, launch: Callable[[], int] = launch) -> list[Module]:
            return [Module(launch, [], 2) for _ in range(count)]

        layers = [group(group(*leaves(4)), group(group(*leaves(4))), *leaves(2)) for _ in range(6)]
        model = group(group(group(group(group(group(*layers, *leaves(3)))))))

        def step(model: Module = model) -> list[int]:
            times: list[int] = []
            model(times)
            return times

        show("modules", kilobytes, [called_from(12, step) for _ in range(args.steps)])
    _recorder.stop({})


def measure_step(args: argparse.Namespace, fake: ctypes.CDLL, folder: Path) -> None:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from profiling_lab.recording import Recorder

    sys.path.insert(0, str(REPO / "benchmarks"))
    from recorder_workloads import hugging_face_training

    read_bytes = 0
    times: list[int] = []

    class Launches(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns):  # no view
                took = fake.fake_timed_launch(read_bytes)
                if torch._C._current_autograd_node() is None:
                    times.append(took)
            return func(*args, **(kwargs or {}))

    torch.set_num_threads(1)
    recorder = Recorder(folder / "run.sqlite", **{part: False for part in args.without})
    recorder.start()
    with Launches():
        step = hugging_face_training("cpu")
        for kilobytes in args.read_kb:
            read_bytes = kilobytes << 10
            steps = []
            for _ in range(3 + args.steps):
                times.clear()
                step()
                steps.append(list(times))
            show("training step", kilobytes, steps[3:])
    summary = recorder.stop()
    print(f"{len(times)} launches in a step, {summary.meta['stacks']} nodes of stacks")


if __name__ == "__main__":
    sys.exit(main())
