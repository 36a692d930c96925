# SPDX-License-Identifier: Apache-2.0
"""full_profiling_session: torch.profiler from warm-up to tables and trace, in one call."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.measure.calls import synchronizer
from profiling_lab.utils.devices import chosen_device


def full_profiling_session(
    model: Any,
    dataloader: Iterable[Any],
    device: object = "cuda",
    *,
    train_step: Callable[[Any, Any], object] | None = None,
    warmup: int = 5,
    steps: int = 20,
    trace_path: str | os.PathLike[str] = "trace.json",
) -> Any:
    """Profile `steps` batches after `warmup`, print the top operations by time and by memory, write a Chrome
    trace to `trace_path` (view it at https://ui.perfetto.dev), and return the torch.profiler.profile.

    The model is moved to `device`. Without train_step each batch, or its first part if it is a tuple or a
    list, goes through model() in eval mode without gradients; a dict is passed by keyword. With it,
    train_step(model, batch) runs as it is, with the batch on the device: that trains the model. The training
    mode of the model is restored. Without a GPU that torch sees it profiles the CPU, with a RuntimeWarning.

    torch.profiler keeps CUPTI for the rest of the process in recent versions of torch: to record with
    profiling_lab afterwards, start a new process. Raises UsageError for counts below 0 and 1, and
    NotEnoughDataError if the dataloader has no batch.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    if warmup < 0 or steps < 1:
        raise UsageError(
            f"full_profiling_session: warmup must be 0 or more and steps at least 1, not {warmup} and {steps}"
        )
    on = str(device)
    if on.startswith("cuda") and not torch.cuda.is_available():
        why = f"torch {torch.__version__} sees no GPU: profiling the CPU"
        warnings.warn(why, RuntimeWarning, stacklevel=2)
        on = "cpu"
    on = chosen_device(on)
    model.to(on)
    wait = synchronizer(on)
    modes = [(module, module.training) for module in model.modules()]
    if train_step is None:
        model.eval()

    def run(count: int) -> int:
        done = 0
        for batch in itertools.islice(dataloader, count):
            if train_step is not None:
                train_step(model, _moved(batch, on))
            else:
                with torch.no_grad():
                    _infer(model, batch, on)
            done += 1
        wait()  # what was launched here is not profiled with the next part, or lost with the last
        return done

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on != "cpu" else [])
    try:
        run(warmup)
        with profile(
            activities=activities, record_shapes=True, profile_memory=True, with_stack=True
        ) as profiler:
            done = run(steps)
    finally:
        for module, training in modes:
            module.training = training
    if not done:
        raise NotEnoughDataError("full_profiling_session: expected batches, the dataloader has none left")
    kind = "cpu" if on == "cpu" else "cuda"
    averages = profiler.key_averages()
    # with_stack adds a row per Python frame, each as long as all that it calls: they would fill the tables.
    frames = {row.key for row in profiler.events() if getattr(row, "activity_type", "") == "python_function"}
    averages[:] = [row for row in averages if row.key not in frames]
    print(f"=== Top operations by {'CPU' if kind == 'cpu' else 'GPU'} time, {done} batches ===")
    print(averages.table(sort_by=f"{kind}_time_total", row_limit=15))
    print("\n=== Top operations by memory ===")
    print(averages.table(sort_by=f"self_{kind}_memory_usage", row_limit=10))
    if reason := _not_exported(profiler, Path(trace_path)):
        warnings.warn(f"the trace {trace_path} could not be written: {reason}", RuntimeWarning, stacklevel=2)
    else:
        print(f"\nExported the trace to {trace_path}; view it at https://ui.perfetto.dev")
    return profiler


def _not_exported(profiler: Any, path: Path) -> str | None:
    """Why there is no trace, or None. torch says it on stderr alone when it cannot open the file."""
    try:
        path.write_bytes(b"")
        profiler.export_chrome_trace(str(path))
        return None if path.stat().st_size else "torch wrote nothing"
    except OSError as error:
        return error.strerror or str(error)
    except RuntimeError as error:
        return str(error)


def _infer(model: Any, batch: Any, device: str) -> object:
    if isinstance(batch, Mapping):
        return model(**_moved(batch, device))
    return model(_moved(batch[0] if isinstance(batch, (tuple, list)) else batch, device))


def _moved(value: Any, device: str) -> Any:
    """The tensors in it on the device, the rest as it is."""
    if hasattr(value, "to"):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _moved(part, device) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = (_moved(part, device) for part in value)
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
