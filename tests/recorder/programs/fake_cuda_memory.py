# SPDX-License-Identifier: Apache-2.0
"""A training loop whose CUDA allocator is a model of torch's: for machines without a GPU.

python fake_cuda_memory.py [fails]    fails: torch's functions raise
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import torch
from memory_model.fake_allocator import FakeAllocator, frame

MIB = 1 << 20
allocator = FakeAllocator(history=False, clock=lambda: time.time_ns() // 1000)
is_on = False


def _record_memory_history(enabled="all", **options):
    global is_on
    if "fails" in sys.argv:
        raise RuntimeError("no history here")
    assert enabled is None or options == {"context": "alloc", "stacks": "python", "max_entries": 300_000}
    is_on = enabled == "all"
    allocator.history = is_on
    print("history", enabled)


class Tensor:
    """On the GPU, as far as the recorder looks."""

    is_cuda = is_leaf = True

    def __init__(self, size, line, function):
        frames = [frame(function, __file__, line)] if line else []
        self.address = allocator.malloc(size, frames)
        self.grad = None

    def data_ptr(self):
        return self.address

    def free(self):
        allocator.free(self.address)


class Optimizer(torch.optim.SGD):
    """Steps without a GPU."""

    def __init__(self, parameters):
        super().__init__([torch.zeros(1)], lr=0.1)
        self.param_groups[0]["params"] = parameters

    def step(self):
        """Torch calls its hooks after this."""


def initialize_cuda():
    """As torch.cuda._lazy_init does."""
    torch._C._cuda_isHistoryEnabled = lambda: is_on
    torch.cuda.memory._record_memory_history = _record_memory_history
    torch.cuda.memory._snapshot = allocator.snapshot
    torch.cuda.memory_stats = lambda device: {
        "allocated_bytes.all.peak": allocator.peak, "allocated_bytes.all.current": allocator.allocated,
        "reserved_bytes.all.peak": allocator.reserved_peak, "reserved_bytes.all.current": allocator.reserved,
    }  # fmt: skip
    torch.cuda.get_device_properties = lambda device: type("Properties", (), {"total_memory": 80 << 30})
    for call, _ in torch.cuda._queued_calls:
        if call.__module__.startswith("profiling_lab"):
            call()


initialize_cuda()
weights = Tensor(8 * MIB, 20, "build")
optimizer = Optimizer([weights])
kept = []
for _ in range(4):
    activation = Tensor(30 * MIB, 30, "forward")
    kept.append(Tensor(3 * MIB, 31, "log"))
    weights.grad = Tensor(8 * MIB, 0, "")
    activation.free()
    optimizer.step()
    weights.grad.free()
    weights.grad = None
print("peak", allocator.peak)
