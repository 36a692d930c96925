# SPDX-License-Identifier: Apache-2.0
"""Notes the work of every operator call while it is active, without changing what the program does.

An operator that cannot be counted is left out and counted in `failures`; no exception of ours reaches the
program. Compiled code runs as it is: its products call operators, and its generated kernels are seen in
triton_kernels.py.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profiling_lab.work import triton_kernels
from profiling_lab.work.model import Work, work_of


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call, on the wall clock (time.time_ns)."""

    name: str
    """`aten::mm`, or the name of a Triton kernel"""
    start_ns: int
    end_ns: int
    thread: int
    """the operating system's thread id"""
    work: Work


class WorkCounter(TorchDispatchMode):  # type: ignore[misc]
    """A context manager: counts the operator calls of its body, of this thread and of its backward.

    device: count only calls with a tensor on devices of this type ("cuda"); None: all calls.
    """

    supports_higher_order_operators = True

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        self.calls: list[OperatorCall] = []
        self.failures = 0
        """calls that could not be counted"""
        self.delays: list[tuple[int, int, int]] = []
        """from when to when counting kept a thread from its program: start_ns, end_ns, thread"""
        self.is_active = True
        """False: calls pass through uncounted"""
        self._device = device
        self._decomposes: dict[Any, bool] = {}
        self._of_triton = triton_kernels.Watch(self._note_kernel)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch.compile compiles as it would without this mode."""
        return True

    def __enter__(self) -> WorkCounter:
        super().__enter__()
        self._of_triton.begin()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._of_triton.end()
        super().__exit__(*exception)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented  # its own dispatch comes next, and then its plain tensors, here
        if not self.is_active or not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        if self._is_composite(func):  # under inference_mode they come undivided
            with self:
                return func.decompose(*args, **kwargs)
        start_ns = time.time_ns()
        result = func(*args, **kwargs)
        end_ns = time.time_ns()
        try:
            if self._device is None or _touches(self._device, (args, kwargs, result)):
                work = work_of(func, args, kwargs, result)
                if work is not None:
                    self._add(func._schema.name, start_ns, end_ns, work)
        except Exception:
            self.failures += 1
        self.delays.append((end_ns, time.time_ns(), threading.get_native_id()))
        return result

    def _is_composite(self, func: Any) -> bool:
        if func not in self._decomposes:
            has_kernel: Any = partial(torch._C._dispatch_has_kernel_for_dispatch_key, func.name())
            composite = bool(has_kernel("CompositeImplicitAutograd"))
            self._decomposes[func] = composite and not any(map(has_kernel, _BACKENDS))
        return self._decomposes[func]

    def _note_kernel(self, name: str, start_ns: int, end_ns: int, work: Work) -> None:
        if self.is_active:
            self._add(name, start_ns, end_ns, work)

    def _add(self, name: str, start_ns: int, end_ns: int, work: Work) -> None:
        self.calls.append(OperatorCall(name, start_ns, end_ns, threading.get_native_id(), work))


_BACKENDS = ("CUDA", "CPU")
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _touches(device: str, value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return bool(value.device.type == device)
    if isinstance(value, (list, tuple)):
        return any(_touches(device, one) for one in value)
    if isinstance(value, dict):
        return any(_touches(device, one) for one in value.values())
    return False
