# SPDX-License-Identifier: Apache-2.0
"""Enable the link from backward launches to forward lines, now or when the script imports torch.

The recorder reads the sequence number and creating thread of an autograd node from memory. It learns the
offsets here, from nodes whose numbers Python knows. The nodes are created on short-lived threads: sequence
numbers are per thread, so those of the program do not change. No backward pass runs, because torch's engine
would start its worker threads, and a script that forks afterwards could no longer use autograd in the
child.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from profiling_lab import _import_watch
from profiling_lab.errors import LabError

IMPORT_PATIENCE_S = 0.3
"""how long the user's `import torch` may wait for the calibration, which usually takes milliseconds. A longer
calibration continues in the background, and the program may launch meanwhile"""
START_PATIENCE_S = 10.0
"""the same for the start of a recording when torch is imported already: its first backward must be linked"""


def link_when_imported() -> Callable[[], None]:
    """Link now if torch is imported, else right after its import. Returns a function that cancels this."""
    linking = _Linking()
    patience_s = START_PATIENCE_S if "torch" in sys.modules else IMPORT_PATIENCE_S
    no_import = _import_watch.when_imported(partial(linking.begin, patience_s=patience_s))

    def give_up() -> None:
        no_import()
        linking.wanted = False

    return give_up


def link(torch: Any) -> str:
    """Calibrate against the imported torch and wait for it. Returns "" or the reason why the link is off."""
    from profiling_lab import _recorder

    _Linking().begin(torch, patience_s=-1)
    state = _recorder.autograd_state()
    return "" if state == "on" else state


class _Linking:
    """The calibration of one recording, on its own thread."""

    def __init__(self) -> None:
        self.wanted = True

    def begin(self, torch: Any, patience_s: float) -> None:
        """Start the calibration. A negative patience waits forever. autograd_state() has the result."""
        from profiling_lab import _recorder

        # No failure here may break the user's `import torch`. If no thread can be started, the state says
        # that nothing was examined.
        with contextlib.suppress(RuntimeError):
            if not _recorder.attach_autograd():
                done = _begin_thread(partial(self._calibrate, torch))
                done.acquire(timeout=patience_s)

    def _calibrate(self, torch: Any) -> None:
        from profiling_lab import _recorder

        try:
            keep: list[Any] = []  # the nodes must live until calibrate() has read them
            nodes: list[tuple[int, int, int]] = []
            ends = [
                _begin_thread(partial(_make_nodes, torch, depths, keep, nodes))
                for depths in ((1, 5), (2, 3))  # so that no other field looks like a node's thread
            ]
            for end in ends:
                end.acquire()
            if len(nodes) < 4:
                raise LabError("autograd nodes could not be made on a helper thread")
            if not self.wanted or _recorder.calibrate(nodes):
                return
            with contextlib.suppress(
                Exception
            ):  # without this only the names of autograd.Functions are missing
                _make_function(torch, keep, nodes)
                _recorder.calibrate_functions(nodes[-1], nodes[-2])
        except Exception as error:
            _recorder.give_up_autograd(str(error))


def _make_nodes(
    torch: Any, depths: tuple[int, ...], keep: list[Any], nodes: list[tuple[int, int, int]]
) -> None:
    with torch.enable_grad():
        for depth in depths:
            value = torch.ones(1, requires_grad=True)
            for _ in range(depth):
                value = value * 2
            keep.append(value)
            _describe(value.grad_fn, keep, nodes)


def _make_function(torch: Any, keep: list[Any], nodes: list[tuple[int, int, int]]) -> None:
    class Probe(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * 2

    with torch.enable_grad():
        value = Probe.apply(torch.ones(1, requires_grad=True))
        user = value * 2
        keep += [value, user]
        _describe(value.grad_fn, keep, nodes)
        _describe(user.grad_fn, keep, nodes)


def _describe(node: Any, keep: list[Any], nodes: list[tuple[int, int, int]]) -> None:
    from profiling_lab import _recorder

    keep.append(node)
    nodes.append((id(node), node._sequence_nr(), _recorder.logical_thread()))


def _begin_thread(work: Callable[[], None]) -> Any:
    """Run `work` on its own thread. Returns a lock that is released when the thread ends, also on failure.

    Not threading.Thread: this may run inside `import torch`.
    """
    running = _thread.allocate_lock()
    running.acquire()

    def body() -> None:
        try:
            with contextlib.suppress(Exception):  # the caller notices the missing nodes
                work()
        finally:
            running.release()

    _thread.start_new_thread(body, ())
    return running
