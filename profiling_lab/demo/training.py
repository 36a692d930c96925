# SPDX-License-Identifier: Apache-2.0
"""Run the training script of the demo in this process, with and without the recorder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from profiling_lab.demo.cost import Cost, write_cost
from profiling_lab.demo.program import copy_program
from profiling_lab.errors import NotEnoughDataError, UsageError

ROUNDS = 5
STEPS = 10  # per round

TINY = [
    "--batch-size",
    "4",
    "--seq-len",
    "32",
    "--vocab-size",
    "200",
    "--d-model",
    "64",
    "--nhead",
    "4",
    "--num-layers",
    "2",
]


@contextmanager
def training_script() -> Iterator[ModuleType]:
    """The module train_model of a fresh copy of the program, imported as if that folder were the working
    folder.
    """
    with TemporaryDirectory(prefix="profiling-lab-demo-") as folder:
        copy_program(Path(folder))
        hidden: dict[str, ModuleType] = {
            name: sys.modules.pop(name) for name in ("train_model", "model") if name in sys.modules
        }
        sys.path.insert(0, folder)
        try:
            import train_model  # type: ignore[import-not-found]

            yield train_model
        finally:
            sys.path.remove(folder)
            for name in ("train_model", "model"):
                sys.modules.pop(name, None)
            sys.modules.update(hidden)


def record_training(
    path: Path,
    heavy: str,
    progress: Callable[[str], None],
    steps: int = STEPS,
    arguments: Sequence[str] = ("--device", "cuda"),
) -> Cost:
    """Train in epochs of `steps` steps, alternately without and with the recorder.

    `path` gets the last recording (of two epochs, the first of them not timed) and its overhead; `arguments`
    are those of the script. Raises UsageError if `path` exists already.
    """
    from profiling_lab.measure import compare_steps
    from profiling_lab.recording import record

    if path.exists():
        raise UsageError(f"{path} exists already; choose another name")
    with training_script() as script:
        args = script.parse_arguments(["--heavy", heavy, "--batches", str(steps), *arguments])
        training = script.build(args)

        def epoch() -> None:
            script.train_epoch(*training, steps)

        progress(f"train_model.py --heavy {heavy}: warming up")
        with record(path) as recorder:  # NVTX looks for a tool once, at its first range
            epoch()
        if recorder.summary and (reason := recorder.summary.reasons.get("gpu")):
            raise NotEnoughDataError(f"the GPU cannot be recorded: {reason}; see profiling-lab doctor")
        progress(f"{ROUNDS} rounds of {steps} steps without the recorder and {steps} with it")
        contexts: dict[str, Callable[[], AbstractContextManager[object]]] = {
            "plain": nullcontext,
            "recorded": lambda: record(path, overwrite=True),
        }
        times = compare_steps(epoch, contexts, steps_per_block=1, warmup=1, blocks=ROUNDS, device=args.device)
    cost = Cost(
        heavy=heavy,
        recorded_steps=2 * steps,
        plain_step_ns=round(times["plain"].median_ns / steps),
        recorded_step_ns=round(times["recorded"].median_ns / steps),
        rounds=ROUNDS,
        steps_per_round=steps,
    )
    write_cost(path, cost)
    return cost


def train_on_cpu(heavy: str) -> None:
    """Train a small model on the CPU with the same script, which prints its loss."""
    with training_script() as script:
        script.main(["--device", "cpu", "--heavy", heavy, "--epochs", "3", "--batches", "4", *TINY])
