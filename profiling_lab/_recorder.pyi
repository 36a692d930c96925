# SPDX-License-Identifier: Apache-2.0
"""The compiled recorder: one recording per process at a time. Use it through profiling_lab.recording."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

VERSION: str

def start(
    *,
    spool_path: str,
    spool_file: int = -1,
    cupti_override: str = "",
    cupti_candidates: list[str] = ...,
    gpu: bool = True,
    python_stacks: bool = True,
    nvtx: bool = True,
    buffer_bytes: int = ...,
    buffers_ahead: int = ...,
    buffers_most: int = ...,
    sample_period_ns: int = 0,
    graph_nodes: bool = False,
    paused: bool = False,
    most_bytes: int = 0,
    flush_period_ms: int = ...,
    drain_period_ms: int = ...,
) -> dict[str, Any]:
    """Begin to record: {"gpu": bool, "gpu_reason": str, "stack_reason": str}.

    spool_file: a descriptor of the file at spool_path, which is duplicated; -1: the file is created, and must
    not exist.

    RuntimeError: nothing was started (already recording, a forked child, another client holds CUPTI, a file
    that cannot be written); its text is one sentence.
    """

def stop(meta: dict[str, str]) -> dict[str, str]:
    """End the recording; `meta` goes into the file. Returns what status() says at the end.

    RuntimeError if none is running.
    """

def warm_up() -> bool:
    """Enable CUPTI; its records belong to no window. False: it is enabled already."""

def open_window(step: int = -1) -> bool:
    """Begin a window of the recording, `step` being the first step in it. False: one is open."""

def close_window() -> bool:
    """End the window. Later calls belong to no window; earlier ones may still run. False: none is open."""

def pause() -> bool:
    """Record nothing until warm_up() or open_window(), without overhead. Synchronise the GPU first."""

def captures_under_way() -> int:
    """The number of CUDA graph captures in progress on any thread, as seen by the running recording."""

def expect_nvtx() -> None:
    """From now on, handle libraries that initialise NVTX outside of a recording too."""

def watch_ranges(name: str, call: Callable[[], object] | None) -> None:
    """Call `call` on the main thread soon after each end of an NVTX range with this name; None: stop."""

def add_meta(meta: dict[str, str]) -> None:
    """Add metadata to the running recording. A later value of a name replaces an earlier one."""

def recording() -> bool: ...
def collection_event(phase: str, info: dict[str, Any]) -> None:
    """For gc.callbacks: a garbage collection begins ("start") or ended ("stop")."""

def leave_out_this_thread() -> None:
    """Do not sample the calling thread until the next recording."""

def compilation_began(args: object = None) -> None:
    """For torch._dynamo.callback: torch.compile begins to compile."""

def compilation_ended(args: object = None) -> None:
    """For torch._dynamo.callback: torch.compile has compiled."""

def status() -> dict[str, str]:
    """Counts and costs of the running (or the last) recording."""

def attach_autograd() -> str:
    """Find torch's functions in this process. "" or one sentence."""

def detach_autograd() -> None: ...
def give_up_autograd(reason: str) -> None:
    """Leave the link off; autograd_state() returns `reason` from now on."""

def logical_thread() -> int:
    """The calling thread's id in autograd's numbering; 0 before attach_autograd()."""

def calibrate(nodes: list[tuple[int, int, int]]) -> str:
    """Learn a node's layout from (id(grad_fn), _sequence_nr(), logical_thread() of its thread) of four nodes.

    Returns "" (the link is on) or one sentence.
    """

def calibrate_functions(user: tuple[int, int, int], function: tuple[int, int, int]) -> bool:
    """Learn to name the nodes of custom autograd.Functions: `function` is one, `user` uses its output."""

def autograd_state() -> str:
    """ "on", or why the link is off."""

def read_spool(path: str | Path, file: int = -1) -> dict[str, Any]:
    """Header, strings, meta and one structured array per kind of record. RuntimeError if it is not a spool.

    file: a descriptor to read from; the path is then only used in messages.
    """

def duplicate_spool() -> int:
    """A descriptor of the running recording's file, with its lock; -1: the file was closed."""

def classify(name: str) -> str:
    """The kind of a CUDA call: launch, graph, copy, set, sync, memory, wait, or none (not recorded)."""

def demangle(name: str) -> str: ...
def short_name(demangled: str) -> str:
    """A kernel's name without return type, namespaces and parameters."""

class python_stacks:
    """Submodule: Python frames of the calling thread, without the GIL."""

    MAX_DEPTH: int
    @staticmethod
    def start() -> None:
        """Turn captures on; RuntimeError gives the reason if that fails."""
    @staticmethod
    def stop() -> None: ...
    @staticmethod
    def hide_callers() -> None:
        """Exclude the running frames from this thread's stacks."""
    @staticmethod
    def resolve() -> None: ...
    @staticmethod
    def capture_here(release_gil: bool = True) -> int:
        """Id of the caller's stack; 0: none."""
    @staticmethod
    def capture_in_native_thread() -> int: ...
    @staticmethod
    def stack(id: int) -> list[tuple[str, str, int, int]]:
        """(file, function, line, first line) of each frame, innermost first."""
    @staticmethod
    def node_count() -> int: ...
    @staticmethod
    def losses() -> dict[str, int]: ...
    @staticmethod
    def nanoseconds_per_capture(repeats: int) -> float: ...
    @staticmethod
    def line_at(code: Any, offset: int) -> int: ...
