# SPDX-License-Identifier: Apache-2.0
"""Communication that autograd hooks launch (DDP, FSDP): the gradients of which modules it reduces.

A hook has no forward line, and its node (AccumulateGrad) no number. But DDP reduces a bucket as soon as its
last gradient is there, so what its thread computed since the reduction before are the gradients it reduces.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.lines_groups import own_frames
from profiling_lab.analysis.lines_layers import layer_path
from profiling_lab.records import dataclass
from profiling_lab.trace.attribution import Match, Phase
from profiling_lab.trace.columns import I32, dense
from profiling_lab.trace.stacks import Stacks
from profiling_lab.trace.trace import Trace

_LINKED = (Match.EXACT, Match.INFERRED, Match.NEAREST)


@dataclass(frozen=True, slots=True)
class Reduction:
    """Communication of all hooks that reduce gradients of the same modules."""

    modules: tuple[str, ...]
    """classes, in the order in which backward reached them; () if nothing is known of its gradients"""
    ns: int
    operations: int


def reductions(trace: Trace, in_hook: npt.NDArray[np.bool_], own_row: I32) -> tuple[Reduction, ...]:
    """The most expensive first. `in_hook`: per operation whether it is such communication; `own_row` as in
    coverage().
    """
    found, calls, duration = trace.attribution, trace.calls, trace.operations.duration_ns
    in_hook = in_hook & (found.call >= 0)
    gradient = (found.phase == Phase.BACKWARD) & np.isin(found.match, _LINKED) & (found.stack > 0) & ~in_hook
    rows = np.flatnonzero(in_hook | gradient)
    call = found.call[rows]
    rows = rows[np.lexsort((calls.start_ns[call], calls.thread[call]))]
    hooks = rows[in_hook[rows]]
    if not len(hooks):
        return ()
    # The next reduction after each gradient, if the same thread makes it.
    at: npt.NDArray[np.int64] = (np.cumsum(in_hook[rows]) - in_hook[rows])[gradient[rows]]
    rows = rows[gradient[rows]]
    thread = calls.thread[found.call]
    same = (at < len(hooks)) & (thread[rows] == thread[hooks[np.minimum(at, len(hooks) - 1)]])
    modules = _modules(trace.stacks, own_row, found.stack[rows[same]], at[same], len(hooks))
    out: dict[tuple[str, ...], list[int]] = {}
    for names, ns in zip(modules, duration[hooks].tolist(), strict=True):
        total = out.setdefault(tuple(names), [0, 0])
        total[0] += ns
        total[1] += 1
    made = (Reduction(names, ns, operations) for names, (ns, operations) in out.items())
    return tuple(sorted(made, key=lambda reduction: (-reduction.ns, reduction.modules)))


def _modules(
    stacks: Stacks, own_row: I32, stack: I32, bucket: npt.NDArray[np.int64], buckets: int
) -> list[dict[str, None]]:
    """Per bucket the modules of its gradients, in their order."""
    number, distinct = dense(stack)
    names = [_module(stacks, own_row, row) for row in distinct.tolist()]
    out: list[dict[str, None]] = [{} for _ in range(buckets)]
    pairs = bucket * max(len(names), 1) + number
    for pair in pairs[np.sort(np.unique(pairs, return_index=True)[1])].tolist():
        out[pair // len(names)][names[pair % len(names)]] = None
    return out


def _module(stacks: Stacks, own_row: I32, stack: int) -> str:
    """The user's module around a stack; without one, that of a library, or the function."""
    functions = [frame.function for frame in own_frames(stacks, own_row, stack)]
    for function in functions:
        owner, _, method = function.rpartition(".")
        if method == "forward" and owner:
            return owner.split(".")[-1]
    layers = layer_path(stacks, stack)
    return layers[-1].name if layers else next(iter(functions), "?")
