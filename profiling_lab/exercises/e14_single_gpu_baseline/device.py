# SPDX-License-Identifier: Apache-2.0
"""The devices that benchmark.py can run on. Read it, but leave it as it is: the grader uses its own copy.

Both have two implementations of the same function, `old` and `new`. A call launches work and returns before
it is done, as CUDA does.
"""

import math
import random
import time


class SimulatedGPU:
    """A GPU whose time is computed: the same numbers on every machine.

    It behaves as a real one does. Launches are asynchronous. The first call with a dtype compiles and
    allocates. Half the bytes take half the time. The L2 cache holds the input of the last call. The clock
    rate falls while the GPU warms up. Now and then something else disturbs a call.
    """

    def __init__(self, seed=0, old_ms=1.0, new_ms=0.8):
        self.random = random.Random(seed)
        self.took_s = {"old": old_ms / 1e3, "new": new_ms / 1e3}
        self.host_s = 0.0  # the host's clock
        self.free_s = 0.0  # when the GPU has done everything
        self.busy_s = 0.0
        self.compiled = set()
        self.cached = None

    def now(self):
        """The host's clock, in seconds."""
        return self.host_s

    def synchronize(self):
        """Wait until the GPU has done everything."""
        self.host_s = max(self.host_s, self.free_s) + 2e-6

    def make_input(self, dtype, seed):
        """A new input on the GPU: "float32" or "bfloat16". It is made on the host and copied."""
        self.host_s += 3e-3 * self.random.uniform(0.95, 1.05)
        return {"dtype": dtype, "seed": seed, "number": self.random.random()}

    def old(self, x):
        return self._launch("old", x)

    def new(self, x):
        return self._launch("new", x)

    def _launch(self, name, x):
        if (name, x["dtype"]) not in self.compiled:
            self.compiled.add((name, x["dtype"]))
            self.host_s += 0.4
        self.host_s += 6e-6
        took_s = self.took_s[name] * (0.5 if x["dtype"] == "bfloat16" else 1.0)
        took_s *= 0.6 if self.cached == x["number"] else 1.0
        took_s *= 1.0 - 0.35 * math.exp(-self.busy_s / 0.03)
        took_s *= self.random.uniform(0.99, 1.01)
        if self.random.random() < 0.08:
            took_s *= self.random.uniform(4.0, 12.0)
        self.cached = x["number"]
        self.busy_s += took_s
        self.free_s = max(self.host_s, self.free_s) + took_s
        return {"dtype": x["dtype"], "of": x["seed"]}


class TorchDevice:
    """This machine's GPU, or its CPU: GELU written out, and GELU as one operator."""

    def __init__(self, rows=4096):
        import torch

        self.torch, self.rows = torch, rows
        self.name = "cuda" if torch.cuda.is_available() else "cpu"

    def now(self):
        return time.perf_counter()

    def synchronize(self):
        if self.name == "cuda":
            self.torch.cuda.synchronize()

    def make_input(self, dtype, seed):
        generator = self.torch.Generator().manual_seed(seed)
        x = self.torch.randn(self.rows, 1024, generator=generator)
        return x.to(self.name, getattr(self.torch, dtype))

    def old(self, x):
        return 0.5 * x * (1 + self.torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))

    def new(self, x):
        return self.torch.nn.functional.gelu(x, approximate="tanh")
