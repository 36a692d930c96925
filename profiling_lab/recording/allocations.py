# SPDX-License-Identifier: Apache-2.0
"""Record what torch's caching allocator does, through torch's own history of it (`record --memory`).

torch keeps the last events with their Python stacks in a ring. It is switched on when the program itself
initializes CUDA, never earlier: a program that forks after that cannot use the GPU in the child. At the end
of the recording the history is read once. Nothing here raises into the program: what fails becomes a reason.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import time
from array import array
from collections.abc import Callable
from typing import Any

from profiling_lab import _import_watch
from profiling_lab.recording import optimizer_steps
from profiling_lab.recording.allocator_snapshot import packed, snapshot_columns
from profiling_lab.recording.meta_names import ALLOCATIONS

MOST_EVENTS = 300_000
"""per device; an event takes about 1 KB of host memory while torch keeps it"""
MOST_BYTES = 48 << 20
"""of the encoded history; the capture file takes no larger block"""
MOST_SETS = 2_000
SAMPLES_COST = 200
"""looking at the tensors of optimizers takes at most one part in this many of the time"""
PARAMETER, GRADIENT, OPTIMIZER_STATE, BUFFER = range(4)  # trace.memory_history.TensorKind
OFF = "torch did not initialize CUDA, so there is nothing to record"


class Allocations:
    """The history of one recording."""

    def __init__(self) -> None:
        self.reason = OFF
        """why nothing is recorded; "" where it is"""
        self._torch: Any = None
        self._is_ours = False
        self._over = False
        self._began_ns = time.perf_counter_ns()
        self._cost_ns = 0
        self._times = array("q")
        self._set_of_time = array("q")
        self._sets: dict[tuple[bytes, bytes], int] = {}

    def start(self) -> Callable[[], None]:
        """Begin when torch initializes CUDA, or now if it has. Returns a function that ends all of it."""
        undo = [_import_watch.when_imported(self._torch_is_there)]
        undo.append(_import_watch.when_imported(lambda _: undo.append(self._follow_optimizers())))

        def end() -> None:
            self._over = True
            for step in reversed(undo):
                step()
            self._stop()

        return end

    def _torch_is_there(self, torch: Any) -> None:
        try:
            self._torch = torch
            torch.cuda._lazy_call(self._cuda_is_there)
        except Exception as error:
            self.reason = f"this torch cannot record its allocator: {type(error).__name__}: {error}"

    def _follow_optimizers(self) -> Callable[[], None]:
        with contextlib.suppress(Exception):
            return optimizer_steps.follow(self._stepped)
        return lambda: None

    def _cuda_is_there(self) -> None:
        """Called by torch while it initializes CUDA: an exception would end the program's first CUDA call."""
        if self._over:
            return
        try:
            if self._is_on():
                self.reason = ""  # the program records it, and we read what is there
                return
            self._torch.cuda.memory._record_memory_history(
                "all", context="alloc", stacks="python", max_entries=MOST_EVENTS
            )
            self._is_ours, self.reason = True, ""
        except Exception as error:
            self.reason = f"this torch cannot record its allocator: {type(error).__name__}: {error}"

    def _is_on(self) -> bool:
        return bool(self._torch._C._cuda_isHistoryEnabled())

    def _stop(self) -> None:
        if self._is_ours:
            self._is_ours = False
            with contextlib.suppress(Exception):
                self._torch.cuda.memory._record_memory_history(None)

    def facts(self) -> dict[str, str]:
        """Metadata: the history so far, encoded, and whether there is one."""
        if self.reason:
            return {"memory_state": self.reason}
        try:
            if not self._is_on():
                self.reason = "the program ended torch's history of the allocator itself"
                return {"memory_state": self.reason}
            self._look_at_modules()
            text = self._encoded()
            if len(text) > MOST_BYTES:
                self.reason = (
                    f"the history of the allocator is too large for the capture: {len(text):,} bytes"
                )
                return {"memory_state": self.reason}
            ours = "on" if self._is_ours else "recorded by the program itself"
            return {ALLOCATIONS: text, "memory_state": ours}
        except Exception as error:
            self.reason = (
                f"torch's history of the allocator could not be read: {type(error).__name__}: {error}"
            )
            return {"memory_state": self.reason}

    def _encoded(self) -> str:
        torch = self._torch
        columns = snapshot_columns(torch.cuda.memory._snapshot())
        for device in columns["devices"]:
            number = device["device"]
            stats = torch.cuda.memory_stats(number)
            device["counts"] = [
                int(stats.get(f"{what}_bytes.all.{which}", 0))
                for what, which in (
                    ("allocated", "peak"),
                    ("reserved", "peak"),
                    ("allocated", "current"),
                    ("reserved", "current"),
                )
            ]
            device["total"] = int(torch.cuda.get_device_properties(number).total_memory)
        columns["most_events"] = MOST_EVENTS if self._is_ours else 0
        columns["samples"] = {"time": packed(self._times), "set": packed(self._set_of_time)}
        columns["sets"] = [
            {"address": packed(array("q", addresses)), "kind": packed(array("b", kinds))}
            for addresses, kinds in self._sets
        ]
        return json.dumps(columns)

    def _stepped(self, optimizer: Any) -> None:
        """An optimizer has made a step: its gradients are still there, and its state since the first step."""
        if self.reason or self._over:
            return
        began = time.perf_counter_ns()
        if self._cost_ns * SAMPLES_COST > began - self._began_ns:
            return
        with contextlib.suppress(Exception):
            seen = _Seen()
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    seen.add_parameter(parameter)
            for state in optimizer.state.values():
                for value in state.values() if isinstance(state, dict) else ():
                    if isinstance(value, self._torch.Tensor):
                        seen.add(value, OPTIMIZER_STATE)
            self._keep(seen)
        self._cost_ns += time.perf_counter_ns() - began

    def _look_at_modules(self) -> None:
        """Parameters and buffers of all modules that are alive now."""
        modules: Any = sys.modules.get("torch.nn.modules.module")
        if modules is None:
            return
        seen = _Seen()
        for one in gc.get_objects():
            if issubclass(type(one), modules.Module):
                own = vars(one)
                for parameter in (own.get("_parameters") or {}).values():
                    seen.add_parameter(parameter)
                for buffer in (own.get("_buffers") or {}).values():
                    seen.add(buffer, BUFFER)
        self._keep(seen)

    def _keep(self, seen: _Seen) -> None:
        key = (seen.addresses.tobytes(), seen.kinds.tobytes())
        if not key[0] or (key not in self._sets and len(self._sets) >= MOST_SETS):
            return
        self._times.append(time.time_ns())
        self._set_of_time.append(self._sets.setdefault(key, len(self._sets)))


class _Seen:
    """Addresses of tensors on a GPU."""

    def __init__(self) -> None:
        self.addresses, self.kinds = array("q"), array("b")

    def add_parameter(self, parameter: Any) -> None:
        """And its gradient. torch warns the program where something that is no leaf is asked for one."""
        self.add(parameter, PARAMETER)
        with contextlib.suppress(Exception):
            if parameter is not None and parameter.is_leaf:
                self.add(parameter.grad, GRADIENT)

    def add(self, tensor: Any, kind: int) -> None:
        # Some have no storage: sparse and lazy ones, and wrappers of several tensors.
        with contextlib.suppress(Exception):
            if tensor is not None and tensor.is_cuda and (address := tensor.data_ptr()):
                self.addresses.append(address)
                self.kinds.append(kind)
