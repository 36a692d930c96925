# SPDX-License-Identifier: Apache-2.0
"""Turns the link from backward launches to forward lines on, now or as soon as the script imports torch.

The recorder reads an autograd node's number and birth thread from memory, at offsets that it learns here from
nodes whose numbers Python knows. The nodes are made on short-lived threads: their sequence numbers are per
thread, so the user's own numbering does not change. No backward pass is run, because torch's engine would
start its worker threads, and a script that forks afterwards could not use autograd in the child any more.
"""

from __future__ import annotations

import _thread
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from profiling_lab.errors import LabError
from profiling_lab.recording import torch_import

_SECONDS_FOR_A_THREAD = 5.0


def link(torch: Any) -> str:
    """Calibrate against the imported torch. Returns "" or the reason why the link stays off."""
    from profiling_lab import _recorder

    # Nothing that goes wrong here may break the user's `import torch`.
    try:
        if reason := _recorder.attach_autograd():
            return reason
        keep: list[Any] = []  # the nodes must live until calibrate() has read them
        nodes: list[tuple[int, int, int]] = []
        for depths in ((1, 5), (2, 3)):  # unlike depths: no other field of a node may look like its thread
            if not _in_a_thread(partial(_make_nodes, torch, depths, keep, nodes)):
                raise LabError("autograd nodes could not be made on a helper thread")
        reason = _recorder.calibrate(nodes)
        if not reason and _in_a_thread(partial(_make_function, torch, keep, nodes)):
            _recorder.calibrate_functions(nodes[-1], nodes[-2])
        return reason
    except Exception as error:
        _recorder.give_up_autograd(str(error))
        return str(error)


def link_when_imported() -> Callable[[], None]:
    """Link now if torch is there, else right after its import. Returns how to give that up."""
    return torch_import.when_imported(link)


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


def _in_a_thread(work: Callable[[], None]) -> bool:
    """Run `work` on a thread of its own. Not threading.Thread: this may run inside `import torch`."""
    done = _thread.allocate_lock()
    done.acquire()
    ok: list[bool] = []

    def body() -> None:
        try:
            with contextlib.suppress(Exception):  # the caller says that it failed
                work()
                ok.append(True)
        finally:
            done.release()

    _thread.start_new_thread(body, ())
    return done.acquire(timeout=_SECONDS_FOR_A_THREAD) and bool(ok)
