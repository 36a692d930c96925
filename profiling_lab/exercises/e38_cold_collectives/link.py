# SPDX-License-Identifier: Apache-2.0
"""The links that bandwidth.py measures: this machine's by torch, and a simulated one whose transfer is known.

Both have the same methods. Calls are launched and run while the host goes on, as CUDA does it.
"""

from __future__ import annotations

import random
import time
from typing import Any

MIB = 4
"""of the gradient that is added up"""


class TorchLink:
    """Between the processes of torch.distributed; the default group must have been made."""

    def __init__(self, device: str) -> None:
        import torch
        from torch import distributed

        self._cuda = torch.cuda if device == "cuda" else None
        self._distributed = distributed
        self.gradient = torch.zeros(MIB << 18, device=device)
        self._calls = 0

    def all_reduce(self) -> None:
        """Launch one, of MIB."""
        from profiling_lab.utils import nvtx

        with nvtx.range(f"step {self._calls}"):
            self._distributed.all_reduce(self.gradient)
        self._calls += 1

    def event(self) -> Any:
        """A mark behind what was launched so far."""
        if self._cuda is None:
            return time.perf_counter()
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def us_between(self, begin: Any, end: Any) -> float:
        """Of two marks that have been passed: see synchronize."""
        return 1e6 * (end - begin) if self._cuda is None else 1e3 * float(begin.elapsed_time(end))

    def synchronize(self) -> None:
        """Wait until everything that was launched is done."""
        if self._cuda is not None:
            self._cuda.synchronize()

    def meet(self) -> None:
        """Wait until all processes are here."""
        self._distributed.barrier()
        self.synchronize()


class SimulatedLink:
    """Between this process and another one that makes the same calls. Times are microseconds.

    The first call makes the communicator: hosts wait for each other there. The second finds one process still
    at work on something else. In some of the others one host is late for a reason of its own.
    """

    launch_us = 6.0

    def __init__(
        self,
        transfer_us: float,
        *,
        first_us: float = 400_000.0,
        late_us: float = 11_000.0,
        late: int = 1,
        stall_us: float = 2_000.0,
        stalls_frac: float = 0.1,
        seed: int = 0,
    ) -> None:
        self.transfer_us, self.first_us, self.late_us, self.late = transfer_us, first_us, late_us, late
        self.stall_us, self.stalls_frac, self._chance = stall_us, stalls_frac, random.Random(seed)
        self.calls = 0
        self._host = [1_000.0, 1_000.0]
        self._free = [0.0, 0.0]

    def all_reduce(self) -> None:
        """Launch one."""
        cold = 3.0 if self.calls < 3 else 1.0
        if self.calls == 0:
            self._host = [max(self._host) + self.first_us] * 2
        elif self.calls == 1:
            self._host[self.late] += self.late_us
        elif self._chance.random() < self.stalls_frac:
            self._host[self._chance.randrange(2)] += self.stall_us
        self.calls += 1
        self._host = [host + self.launch_us for host in self._host]
        starts = [max(pair) for pair in zip(self._host, self._free, strict=True)]
        self._free = [max(starts) + cold * self.transfer_us] * 2

    def event(self) -> float:
        """A mark behind what was launched so far."""
        self._host = [host + 1.0 for host in self._host]
        return max(self._host[0], self._free[0])

    def us_between(self, begin: float, end: float) -> float:
        """Of two marks that have been passed: see synchronize."""
        if max(begin, end) > self._host[0]:
            raise RuntimeError("both marks must have been passed: call synchronize() first")
        return end - begin

    def synchronize(self) -> None:
        """Wait until everything that was launched is done."""
        self._host = [max(pair) + 5.0 for pair in zip(self._host, self._free, strict=True)]

    def meet(self) -> None:
        """Wait until both processes are here."""
        self.synchronize()
        self._host = [max(self._host) + 25.0 + self._chance.random() * 2 for _ in range(2)]
