# SPDX-License-Identifier: Apache-2.0
"""Run the exercise's training script in this process, with and without the recorder."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from profiling_lab.exercises import find, workspace

ROUNDS = 5
STEPS = 10  # per round, after one that is not timed

TINY = ["--batch-size", "4", "--seq-len", "32", "--vocab-size", "200", "--d-model", "64", "--nhead", "4", "--num-layers", "2"]


@dataclass(frozen=True, slots=True)
class Cost:
    """The time of one training step without and with the recorder: medians over rounds that took turns."""

    plain_step_ns: int
    recorded_step_ns: int
    rounds: int
    steps: int
    """per round"""

    @property
    def overhead_frac(self) -> float:
        return self.recorded_step_ns / self.plain_step_ns - 1


@contextmanager
def training_script() -> Iterator[ModuleType]:
    """The module train_model of a fresh copy of the exercise, imported as if that folder were the working folder.

    A copy, so that its frames are a user's files like any other and not part of an installed package.
    """
    with TemporaryDirectory(prefix="profiling-lab-demo-") as folder:
        workspace.copy_starter(find("python-backtrace"), Path(folder))
        hidden = {name: sys.modules.pop(name) for name in ("train_model", "model") if name in sys.modules}
        sys.path.insert(0, folder)
        try:
            import train_model  # type: ignore[import-not-found]

            yield train_model
        finally:
            sys.path.remove(folder)
            for name in ("train_model", "model"):
                sys.modules.pop(name, None)
            sys.modules.update(hidden)


def record_training(path: Path, heavy: str, progress: Callable[[str], None]) -> Cost:
    """Train on the GPU in rounds, in turns without and with the recorder; `path` keeps the last round's recording."""
    import torch

    from profiling_lab.recording import record

    with training_script() as script:
        training = script.build(script.parse_arguments(["--heavy", heavy, "--device", "cuda"]))

        def step_ms(steps: int) -> float:
            milliseconds: float = script.train_epoch(*training, steps)[1]
            return milliseconds

        progress(f"train_model.py --heavy {heavy} on {torch.cuda.get_device_name()}: warming up")
        step_ms(STEPS)
        plain_ms, recorded_ms = [], []
        for number in range(1, ROUNDS + 1):
            progress(f"round {number} of {ROUNDS}: {STEPS} steps without the recorder, {STEPS} with it")
            step_ms(1)
            plain_ms.append(step_ms(STEPS))
            with record(path):
                step_ms(1)
                recorded_ms.append(step_ms(STEPS))
    return Cost(
        plain_step_ns=round(statistics.median(plain_ms) * 1e6),
        recorded_step_ns=round(statistics.median(recorded_ms) * 1e6),
        rounds=ROUNDS,
        steps=STEPS,
    )


def train_on_cpu(heavy: str) -> None:
    """Train a model small enough for any CPU with the same script, which prints its loss."""
    with training_script() as script:
        script.main(["--device", "cpu", "--heavy", heavy, "--epochs", "3", "--batches", "4", *TINY])
