# SPDX-License-Identifier: Apache-2.0
"""Drives the fake CUPTI from Python, in the test's process or in a script that a test starts."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

RUNTIME, DRIVER = 2, 1
LAUNCH, MALLOC, COPY, SET, STREAM_SYNC, DEVICE_SYNC, GRAPH, LAST_ERROR = 211, 20, 41, 51, 131, 165, 311, 10
EVENT_SYNC, STREAM_WAIT = 137, 147
DRIVER_LAUNCH, DRIVER_LAUNCH_EX, HOST_FUNCTION = 307, 652, 527


class Fake:
    """The fake library that PROFILING_LAB_CUPTI names, with one method per thing a GPU program does."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ["PROFILING_LAB_CUPTI"])
        u32, u64, text, number = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_int
        for name, arguments in {
            "fake_kernel": (u32, u64, u64, text, u32, number, number),
            "fake_kernel_of_node": (u32, u64, u64, text, u32, number, number, u64),
            "fake_graph_node": (u64, u64),
            "fake_memcpy": (u32, u64, u64, u64, number),
            "fake_peer_copy": (u32, u64, u64, u64),
            "fake_memset": (u32, u64, u64, u64, u32),
            "fake_graph": (u32, u64, u64, u32),
            "fake_call": (number, u32, number),
            "fake_enter": (number, u32),
            "fake_exit": (number, u32, u32, number),
            "fake_numbered": (number,),
            "fake_fail": (text, number),
            "fake_other_subscriber": (text,),
        }.items():
            getattr(self.library, name).argtypes = arguments
        self.library.fake_slowest_launch.argtypes = (u64,)
        self.library.fake_numbered.restype = text
        self.library.fake_api_calls.restype = self.library.fake_slowest_launch.restype = u64

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library, f"fake_{name}")

    def call(self, cbid: int, domain: int = RUNTIME, result: int = 0) -> int:
        return int(self.library.fake_call(domain, cbid, result))

    def kernel(self, name: str, *, ns: int = 1000, stream: int = 7, grid: int = 10, block: int = 256) -> int:
        """A launch from the calling line and its kernel, which starts a microsecond later."""
        correlation = int(self.library.fake_launch())
        start = time.time_ns() + 1000
        self.library.fake_kernel(correlation, start, start + ns, name.encode(), stream, grid, block)
        return correlation

    def captured(self, node: int) -> int:
        """A launch from the calling line into the graph that is being captured."""
        correlation = int(self.library.fake_enter(RUNTIME, LAUNCH))
        self.library.fake_graph_node(node, 0)
        self.library.fake_exit(RUNTIME, LAUNCH, correlation, 0)
        return correlation

    def replay(self, nodes: dict[int, str]) -> int:
        """A graph launch from the calling line, and the kernel of each of its nodes."""
        correlation = self.call(GRAPH)
        start = time.time_ns()
        for i, (node, name) in enumerate(nodes.items()):
            at = start + 2000 * i
            self.library.fake_kernel_of_node(correlation, at, at + 1000, name.encode(), 7, 10, 256, node)
        return correlation

    def copy(self, *, nbytes: int = 4096, ns: int = 500, kind: int = 1) -> int:
        correlation = self.call(COPY)
        start = time.time_ns()
        self.library.fake_memcpy(correlation, start, start + ns, nbytes, kind)
        return correlation


def launch_per_operator(fake: Fake, *, views: bool = True) -> Any:
    """A context in which every torch operator, forward or backward, launches one kernel of its own name.

    So a CPU model makes the launches that a CUDA model would, each while the same autograd node is running.
    Without `views`, operators that only look at a tensor anew or allocate one launch nothing, as on a GPU.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if views or not _is_free(func):
                fake.kernel(func.name().replace("aten::", "").replace(".", "_"))
            return func(*args, **(kwargs or {}))

    return Mode()


def _is_free(operator: Any) -> bool:
    """Whether a GPU would have nothing to do for a torch operator."""
    returned = operator._schema.returns
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returned)
    free = ("aten::empty", "aten::new_empty", "aten::_unsafe_view", "profiler::")
    return is_view or operator.name().startswith(free)


def launching_operator(fake: Fake) -> Any:
    """A torch operator that torch.compile does not look into: it copies its input, and launches a fake kernel
    in forward and another one in backward.
    """
    import torch

    def launch(x: Any) -> Any:
        fake.kernel("copy")
        return x.clone()

    launch.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    operator = torch.library.custom_op("fake_driver::copy", launch, mutates_args=())
    operator.register_fake(torch.empty_like)
    operator.register_autograd(lambda _, gradient: torch.ops.fake_driver.copy(gradient))
    return operator
