# SPDX-License-Identifier: Apache-2.0
"""A training loop: where its time goes (TrainingProfiler), a recording of some steps (profile_training)."""

from __future__ import annotations

import json
import os
import statistics
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from profiling_lab.errors import LabError, UsageError
from profiling_lab.measure import LoopClock, LoopStep
from profiling_lab.recording import Recorder, Schedule, record
from profiling_lab.utils import nvtx
from profiling_lab.utils.devices import allocator, chosen_device

T = TypeVar("T")

LEAST_STEPS = 3
"""fewer measured steps than this have no verdict"""
DATA_SHARE = 0.05
"""Waiting for data above this share of the loop is worth a change: as in the rule `dataloader`."""

LOADING, BETWEEN, STEP, GPU = "data loading", "between steps", "step", "GPU"
_ADVICE = "load in the background: DataLoader(num_workers=4, pin_memory=True, persistent_workers=True)"
_RECORD = "profiling-lab record shows which: then profiling-lab gaps and profiling-lab lines"
_NO_DATA = "the loader is not wrapped: iterate over profiler.data(loader)"


class TrainingProfiler:
    """Measures a training loop without waiting for the GPU in it.

    profiler = TrainingProfiler()
    for batch in profiler.data(loader):
        with profiler.profile_step(batch_size=len(batch)):
            train(batch)
    summary = profiler.summary()

    The first `warmup_steps` steps do not count. device: default the current GPU at the first step, else the
    CPU. The peak of torch's memory statistics is reset when the first step that counts begins.
    """

    def __init__(self, warmup_steps: int = 5, device: object = None) -> None:
        if warmup_steps < 0:
            raise UsageError(f"TrainingProfiler: warmup_steps must be 0 or more, not {warmup_steps}")
        self.warmup_steps = warmup_steps
        self._wanted_device = device
        chosen_device(device)  # refuse it now, not in the loop
        self._clock = LoopClock("cpu")
        self._batch_sizes: list[int] = []
        self._loads_data = False

    def data(self, loader: Iterable[T]) -> Iterator[T]:
        """The batches of `loader`, with the time measured that the loop waits for each."""
        self._loads_data = True
        batches = iter(loader)
        nothing = object()
        while (batch := self._clock.waiting(lambda: next(batches, nothing))) is not nothing:
            yield batch

    @contextmanager
    def profile_step(self, batch_size: int = 0) -> Iterator[None]:
        """One step, in an NVTX range of that name. batch_size: samples in its batch, for samples_per_s.

        A step that raises does not count; the exception is passed on.
        """
        clock = self._clock
        clock.device = chosen_device(self._wanted_device)
        if len(clock.steps) == self.warmup_steps and (cuda := allocator()) and clock.device != "cpu":
            cuda.reset_peak_memory_stats(clock.device)
        clock.begin()
        try:
            with nvtx.range("step"):
                yield
        except BaseException:
            clock.abandon()
            raise
        clock.end()
        self._batch_sizes.append(batch_size)

    def summary(self) -> dict[str, Any]:
        """The measured steps, for print or JSON. Times are in the unit of their name, per step the median.

        bottleneck: the part that takes most of the loop's time: "data loading"; "between steps", other work
        there; on the CPU "step"; on a GPU "GPU" if the host was ahead of it in most steps. None where the
        times do not say, with the reason in `why`. data_share: of the loop's time; on a GPU only what it
        idled meanwhile.
        """
        self._clock.finish()
        steps = self._clock.steps[self.warmup_steps :]
        device = self._clock.device
        cuda = allocator() if device != "cpu" and steps else None
        peak_bytes = None if cuda is None else int(cuda.max_memory_allocated(device))
        sizes = self._batch_sizes[self.warmup_steps :]
        return _summary(device, steps, sizes, self.warmup_steps, peak_bytes, verdict(steps, self._loads_data))

    def save_report(self, path: str | os.PathLike[str]) -> None:
        """The summary as JSON. Raises UsageError if the file cannot be written."""
        try:
            Path(path).write_text(json.dumps(self.summary(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"the report {os.fspath(path)} cannot be written: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """bottleneck: the part that takes most of the time, or None; why: the numbers, or what is missing."""

    bottleneck: str | None
    why: str
    data_share: float | None = None


def verdict(steps: list[LoopStep], loads_data: bool) -> Bottleneck:
    """Where the time of a loop goes, from its steps alone."""
    if len(steps) < LEAST_STEPS:
        return Bottleneck(None, f"{len(steps)} steps were measured, expected at least {LEAST_STEPS}")
    gpu = [step for step in steps if step.gpu_span_ns is not None and step.gpu_between_ns is not None]
    if any(step.gpu_span_ns is not None for step in steps):
        # On the GPU's clock: what it idled while the host waited for data.
        total_ns = sum((s.gpu_span_ns or 0) + (s.gpu_between_ns or 0) for s in gpu)
        data_ns = sum(min(s.data_ns, s.gpu_between_ns or 0) for s in gpu)
        step_ns = sum(s.gpu_span_ns or 0 for s in gpu)
    else:
        total_ns = sum(s.between_ns + s.host_ns for s in steps)
        data_ns = sum(s.data_ns for s in steps)
        step_ns = sum(s.host_ns for s in steps)
    if total_ns <= 0:
        return Bottleneck(None, "the steps took no measurable time")
    parts = {LOADING: data_ns, BETWEEN: total_ns - step_ns - data_ns, STEP: step_ns}
    if not loads_data:
        del parts[LOADING]
    largest = max(parts, key=lambda part: parts[part])
    shares = ", ".join(f"{part} {100 * ns / total_ns:.1f} %" for part, ns in parts.items())
    data_share = data_ns / total_ns if loads_data else None
    if largest != STEP or not gpu:
        return Bottleneck(largest, f"of the loop's time: {shares}", data_share)
    ahead = sum(bool(step.host_ahead) for step in gpu)
    if 2 * ahead > len(gpu):
        return Bottleneck(
            GPU, f"{shares}; the host was a step ahead in {ahead} of {len(gpu)} steps", data_share
        )
    return Bottleneck(
        None, f"{shares}; in the step either the GPU works or it waits for launches. {_RECORD}", data_share
    )


def _summary(
    device: str,
    steps: list[LoopStep],
    sizes: list[int],
    warmup: int,
    peak_bytes: int | None,
    found: Bottleneck,
) -> dict[str, Any]:
    # The way to the first step that counts belongs to it, unless nothing was before.
    loop_ns = sum(step.between_ns + step.host_ns for step in steps)
    loop_s = loop_ns * 1e-9 if loop_ns else None
    all_sizes = bool(sizes) and all(sizes)
    advice = []
    if found.data_share is None and steps:
        advice.append(_NO_DATA)
    elif found.data_share is not None and found.data_share > DATA_SHARE:
        advice.append(_ADVICE)
    return {
        "device": device,
        "steps": len(steps),
        "warmup_steps": warmup,
        "loop_s": loop_s,
        "step_host_ms": _median_ms([step.host_ns for step in steps]),
        "between_steps_ms": _median_ms([step.between_ns for step in steps]),
        "data_wait_ms": None if found.data_share is None else _median_ms([step.data_ns for step in steps]),
        "step_gpu_ms": _median_ms([step.gpu_span_ns for step in steps]),
        "gpu_between_steps_ms": _median_ms([step.gpu_between_ns for step in steps]),
        "steps_per_s": None if loop_s is None else len(steps) / loop_s,
        "samples_per_s": None if loop_s is None or not all_sizes else sum(sizes) / loop_s,
        "peak_memory_bytes": peak_bytes,
        "data_share": found.data_share,
        "bottleneck": found.bottleneck,
        "why": found.why,
        "advice": advice,
    }


def _median_ms(values_ns: list[int] | list[int | None]) -> float | None:
    known = [value for value in values_ns if value is not None]
    return statistics.median(known) / 1e6 if known else None


@contextmanager
def profile_training(
    name: str = "training",
    output_dir: str | os.PathLike[str] = ".",
    trace_memory: bool = False,
    with_stack: bool = True,
    num_warmup_steps: int = 1,
    num_profile_steps: int = 5,
    record_shapes: bool = False,
    **options: Any,
) -> Iterator[Recorder]:
    """Record `num_profile_steps` steps of the training loop in the block, after `num_warmup_steps`.

    A step ends when an optimizer steps, so the loop needs no change; call profiling_lab.step() where no
    optimizer does. The file is <output_dir>/<name>.sqlite, or the next free name; it is complete, and the
    `summary` of the recorder that this yields is set, after the block, also if the block raises. Further
    options are those of Recorder. trace_memory and record_shapes: not recorded, see
    full_profiling_session.

    If the recorder cannot start or finish, that is a RuntimeWarning, and the training continues. Raises
    UsageError for counts that record nothing, and a folder that cannot be made.
    """
    asked = {"trace_memory": trace_memory, "record_shapes": record_shapes}
    if unmet := [option for option, wanted in asked.items() if wanted]:
        warnings.warn(f"not recorded: {', '.join(unmet)}", RuntimeWarning, stacklevel=3)
    folder = Path(output_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the folder {folder} cannot be made: {error.strerror}") from None
    schedule = Schedule(warmup=num_warmup_steps, active=num_profile_steps, repeat=1)
    path = _free_name(folder, name)
    recording = record(path, schedule=schedule, stacks=with_stack, **options)
    try:
        recorder = recording.__enter__()
    except LabError as error:
        warnings.warn(f"nothing is recorded: {error}", RuntimeWarning, stacklevel=3)
        yield Recorder(path)  # never started
        return
    try:
        yield recorder
    except BaseException:
        recording.__exit__(*sys.exc_info())  # raises the exception again
        raise
    try:
        recording.__exit__(None, None, None)
    except LabError as error:
        warnings.warn(f"the recording could not be finished: {error}", RuntimeWarning, stacklevel=3)


def _free_name(folder: Path, name: str) -> Path:
    path, number = folder / f"{name}.sqlite", 1
    while path.exists() or path.with_name(f"{path.name}.spool").exists():
        number += 1
        path = folder / f"{name}-{number}.sqlite"
    return path
