# SPDX-License-Identifier: Apache-2.0
"""What each allocation is used for: parameters, gradients, activations and so on.

The recorder notes the addresses of parameters, gradients and optimizer state. Where it saw none, as in a
snapshot, the frames of torch that made them tell. The rest follows from how long a block lived. Activations
are made in forward and freed in the backward that follows. What is freed before is temporary. Without a sign
the kind is unknown.
"""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.memory.owners import Backwards, Owners, backwards
from profiling_lab.analysis.memory.replay import BEFORE, Replay
from profiling_lab.trace.columns import U8, full, unique
from profiling_lab.trace.memory_history import Action, KnownTensors, TensorKind
from profiling_lab.trace.phases import LinePhase
from profiling_lab.trace.trace import Trace


class Kind(IntEnum):
    """What an allocation is used for."""

    PARAMETER = 0
    GRADIENT = 1
    OPTIMIZER_STATE = 2
    BUFFER = 3
    ACTIVATION = 4
    """made in forward, freed in the backward that follows"""
    WORKSPACE = 5
    """of cuBLAS: torch allocates one per stream and keeps it"""
    TEMPORARY = 6
    """freed in the phase in which it was made"""
    KEPT = 7
    """made in forward and still alive when the next backward begins: inputs, caches, lists"""
    UNKNOWN = 8


KIND_NAMES = {
    Kind.PARAMETER: "parameters",
    Kind.GRADIENT: "gradients",
    Kind.OPTIMIZER_STATE: "optimizer state",
    Kind.BUFFER: "buffers",
    Kind.ACTIVATION: "activations",
    Kind.WORKSPACE: "workspace",
    Kind.TEMPORARY: "temporary",
    Kind.KEPT: "kept",
    Kind.UNKNOWN: "unknown",
}
_KIND_OF_TENSOR = np.array([Kind[kind.name] for kind in TensorKind], dtype=np.uint8)
_MODULES = re.compile(r"(^|/)torch/nn/(modules/|init\.py|parameter\.py)")
_MAKE = ("__init__", "_apply", "convert", "reset_parameters")
_MOVE = "_apply"
"""of `.to()` and `.cuda()`: what they make stays until the module goes"""
_OPTIMIZERS = re.compile(r"(^|/)torch/optim/")
_STATE = ("_init_group", "init_group")
CUBLAS_BYTES = (8_519_680, 33_554_432)
"""sizes of cuBLAS's workspaces in torch (ATen/cuda/CublasHandlePool): the default, and that for Hopper"""


def kinds(trace: Trace, replayed: Replay, made_by: Owners) -> U8:
    """The Kind of each allocation."""
    out = full(len(made_by.stack), Kind.UNKNOWN, np.uint8)
    if len(trace.operations):
        _by_life(out, replayed, made_by, backwards(trace, replayed.history.process))
    else:
        _by_frees(out, replayed)
    at_the_end = replayed.allocations.end == len(replayed.history)
    _by_frames(out, trace, replayed, made_by)
    out[np.isin(replayed.allocations.requested, CUBLAS_BYTES) & at_the_end] = Kind.WORKSPACE
    _known(out, replayed, replayed.history.tensors)
    return out


def _by_frames(out: U8, trace: Trace, replayed: Replay, made_by: Owners) -> None:
    """Modules make and move their parameters in functions of torch, and optimizers their state."""
    stacks, stack = trace.stacks, replayed.allocations.stack
    in_module = (
        stacks.nearest(lambda f: bool(_MODULES.search(f.file)) and _last(f.function) in _MAKE)[stack] > 0
    )
    in_optimizer = stacks.nearest(lambda f: bool(_OPTIMIZERS.search(f.file)) and _last(f.function) in _STATE)
    moved = stacks.nearest(lambda f: bool(_MODULES.search(f.file)) and _last(f.function) == _MOVE)[stack] > 0
    ours = made_by.phase != LinePhase.BACKWARD
    lives_on = ours & np.isin(out, (Kind.KEPT, Kind.UNKNOWN))
    out[(lives_on & in_module) | (ours & moved)] = Kind.PARAMETER
    out[lives_on & (in_optimizer[stack] > 0)] = Kind.OPTIMIZER_STATE


def _last(function: str) -> str:
    return function.rsplit(".", 1)[-1]


def _by_life(out: U8, replayed: Replay, made_by: Owners, spans: Backwards) -> None:
    """Kinds by when allocations are freed, seen from the backward passes."""
    begin, end = made_by.begin_ns, made_by.end_ns
    farthest = np.iinfo(np.int64).max
    starts = np.append(spans.start_ns, [farthest, farthest])
    following = np.searchsorted(spans.start_ns, begin, "right")
    crosses = starts[following] < end
    forward = np.isin(made_by.phase, (LinePhase.FORWARD, LinePhase.RECOMPUTE))
    alive_at_end = replayed.allocations.end == len(replayed.history)
    out[forward & crosses] = Kind.KEPT
    out[forward & crosses & (end < starts[following + 1]) & ~alive_at_end] = Kind.ACTIVATION
    out[forward & ~crosses & ~alive_at_end] = Kind.TEMPORARY
    out[forward & ~crosses & alive_at_end] = Kind.KEPT
    around = np.maximum(following - 1, 0)
    passes = np.append(spans.end_ns, farthest)[around]
    backward = made_by.phase == LinePhase.BACKWARD
    out[backward & (end <= passes)] = Kind.TEMPORARY
    out[(made_by.phase == LinePhase.RECOMPUTE) & (end <= passes)] = Kind.ACTIVATION
    out[(made_by.phase == LinePhase.OPTIMIZER) & ~alive_at_end & ~crosses] = Kind.TEMPORARY
    out[replayed.allocations.begin == BEFORE] = Kind.UNKNOWN
    _interrupted(out, replayed, made_by, following == len(spans.start_ns))


def _interrupted(out: U8, replayed: Replay, made_by: Owners, is_last: npt.NDArray[np.bool_]) -> None:
    """After the last backward nothing shows what becomes of an allocation: it has the kind that earlier ones
    of its stack have, if memory ran out."""
    ooms = np.flatnonzero(replayed.history.action == Action.OOM)
    if not len(ooms):
        return
    last = int(ooms[-1])
    open_ones = is_last & (replayed.allocations.begin <= last) & (replayed.allocations.end > last)
    known: dict[int, int] = {}
    for stack, kind in zip(made_by.stack[~is_last].tolist(), out[~is_last].tolist(), strict=True):
        if kind != Kind.TEMPORARY or stack not in known:
            known[stack] = kind
    for row in np.flatnonzero(open_ones).tolist():
        out[row] = known.get(int(made_by.stack[row]), Kind.UNKNOWN)


def _by_frees(out: U8, replayed: Replay) -> None:
    """A snapshot may have the frames of frees. What has frames and is freed without any is freed by the
    autograd engine: an activation."""
    made, history = replayed.allocations, replayed.history
    freed = np.flatnonzero(made.end < len(history))
    stack = history.stack[made.end[freed]]
    if (stack != made.stack[freed]).any():
        out[freed[(stack == 0) & (made.stack[freed] > 0)]] = Kind.ACTIVATION


def _known(out: U8, replayed: Replay, tensors: KnownTensors) -> None:
    """Kinds that the recorder saw: of each sample the allocations around the noted addresses."""
    made, times = replayed.allocations, replayed.history.time_ns
    order = np.argsort(-tensors.kind.astype(np.int64), kind="stable")  # the most certain last
    rows_of_set = {number: order[tensors.set[order] == number] for number in unique(tensors.set).tolist()}
    for time, number in zip(tensors.sample_ns.tolist(), tensors.sample_set.tolist(), strict=True):
        event = int(np.searchsorted(times, time, "right")) - 1
        alive = made.alive_at(event)
        alive = alive[np.argsort(made.address[alive], kind="stable")]
        rows = rows_of_set.get(number)
        if rows is None or not len(alive):
            continue
        addresses = tensors.address[rows]
        at = np.maximum(np.searchsorted(made.address[alive], addresses, "right") - 1, 0)
        block = alive[at]
        inside = (made.address[block] <= addresses) & (addresses < made.address[block] + made.size[block])
        out[block[inside]] = _KIND_OF_TENSOR[tensors.kind[rows[inside]]]
