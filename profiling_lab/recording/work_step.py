# SPDX-License-Identifier: Apache-2.0
"""Count the work of one step of the program: the FLOPs and bytes of each operator, for `roofline`.

Within that step every operator passes through Python, so the host needs more time; the kernels are the same,
and each one's time is that of any other step. What counting took is recorded as overhead of the profiler, so
that idle time of the GPU in it is not taken for the program's.

Nothing is done where it could disturb: with another dispatch mode active, inside of a backward pass, or with
a torch whose torch.compile would not compile while it counts. The next step is tried instead.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from profiling_lab.errors import UsageError
from profiling_lab.recording.meta_names import WORK

if TYPE_CHECKING:
    from profiling_lab.work.counter import WorkCounter

MOST_CALLS = 50_000
"""more calls than this are not stored: the metadata of a capture has a longest text"""


DEVICE: str | None = "cuda"
"""operators on other devices launch nothing that is recorded; None: all"""


class WorkStep:
    """Counts the step with this number, the first is 0; None: the first recorded one that is not step 0."""

    def __init__(self, wanted: int | None = None) -> None:
        if wanted is not None and wanted < 0:
            raise UsageError(f"the step whose work is counted must be 0 or more, not {wanted}")
        self.wanted = wanted
        self.state = "no step has ended: profiling_lab.step() at the end of each tells the recorder"
        """'on' if a step was counted, else why not"""
        self._counter: WorkCounter | None = None
        self._thread = 0
        self._began_ns = 0
        self._step = -1
        self._done = False

    def step_ended(self, ended: int, is_recording: bool) -> None:
        """`ended` steps have ended. Called on the thread that ended one; never raises."""
        if self._done:
            return
        try:
            if self._counter is not None:
                if threading.get_ident() == self._thread:
                    self._end()
            elif is_recording and (ended >= 1 if self.wanted is None else ended == self.wanted):
                self._begin(ended)
        except Exception as error:
            self._done = True
            self.state = f"counting failed: {type(error).__name__}: {error}"

    def stop(self) -> dict[str, str]:
        """The recording ends; on any thread. Returns the reason if no step was counted."""
        counter, self._done = self._counter, True
        try:
            if counter is not None and threading.get_ident() == self._thread:
                self._end()
            elif counter is not None:  # the mode stays on its thread, and lets everything through
                counter.is_active = False
                self.state = "the recording ended on another thread than the counted step"
        except Exception as error:
            self.state = f"counting failed: {type(error).__name__}: {error}"
        return {} if self.state == "on" else {"work": self.state}

    def _begin(self, step: int) -> None:
        if why := _why_not():
            self.state = why
            return
        from profiling_lab.work.counter import WorkCounter

        counter = WorkCounter(device=DEVICE)
        counter.__enter__()
        self._counter, self._thread, self._step = counter, threading.get_ident(), step
        self._began_ns = time.time_ns()
        self.state = f"step {step} did not end"

    def _end(self) -> None:
        from profiling_lab import _recorder

        counter, self._counter, self._done = self._counter, None, True
        assert counter is not None
        counter.is_active = False
        leave(counter)
        self.state = "on"
        facts = {
            "work_step": str(self._step),
            "work_failures": str(counter.failures),
            "work_dropped": str(max(len(counter.calls) - MOST_CALLS, 0)),
            WORK: encoded(counter, self._began_ns),
        }
        _recorder.add_meta(facts)  # now, so that it survives a kill

    def facts(self) -> dict[str, str]:
        return {"work_state": self.state}


def _why_not() -> str:
    """Why counting cannot begin here and now; "" if it can."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return "the program has not imported torch"
    from torch.utils._python_dispatch import TorchDispatchMode

    if not hasattr(TorchDispatchMode, "ignore_compile_internals"):
        return "this torch does not compile while operators are counted; torch 2.10 does"
    if torch._C._len_torch_dispatch_stack():
        return "another dispatch mode of torch was active when the step began"
    if torch._C._current_graph_task_id() != -1:
        return "the step began inside of a backward pass"
    return ""


def leave(counter: WorkCounter) -> None:
    """Take the mode off this thread's stack, wherever it is: the program may have entered others since."""
    import torch
    from torch.utils import _python_dispatch as modes

    size = torch._C._len_torch_dispatch_stack()
    stack = [torch._C._get_dispatch_stack_at(i) for i in range(size)]
    if counter not in stack:  # another tool took it off
        modes._push_mode(counter)
        counter.__exit__(None, None, None)
        return
    above = stack[stack.index(counter) + 1 :]
    for _ in above:
        modes._pop_mode()
    counter.__exit__(None, None, None)
    for mode in above:
        modes._push_mode(mode)


def encoded(counter: WorkCounter, began_ns: int) -> str:
    """JSON: texts; per call its times since `began`, thread, numbers and the rows of its texts; delays."""
    texts: dict[str, int] = {}

    def text(value: str) -> int:
        return texts.setdefault(value, len(texts))

    calls = [
        (
            one.start_ns - began_ns,
            one.end_ns - began_ns,
            one.thread,
            one.work.flops,
            one.work.read_bytes,
            one.work.written_bytes,
            text(one.name),
            text(one.work.kind),
            text(one.work.math),
            text(one.work.shapes),
        )
        for one in counter.calls[:MOST_CALLS]
    ]
    delays = [(first - began_ns, last - began_ns, t) for first, last, t in counter.delays[:MOST_CALLS]]
    return json.dumps({"began": began_ns, "texts": list(texts), "calls": calls, "delays": delays})
