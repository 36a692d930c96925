# SPDX-License-Identifier: Apache-2.0
"""DDP on two GPUs: every kernel has its line or a named reason, every all-reduce the module it reduces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from package_root import PACKAGE_ROOT
from recorder.program_lines import PROGRAMS, marked, recorded, share

from profiling_lab.analysis.coverage import AT_THE_END, IN_HOOKS, hook_reductions
from profiling_lab.analysis.lines import lines
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import OperationKind
from profiling_lab.trace.operation_classes import OperationClass, operation_classes
from profiling_lab.trace.ownership import Ownership

pytestmark = pytest.mark.multigpu

NAME, OWN = "distributed", ("programs/distributed.py",)
STEPS = 3


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The recordings of both processes."""
    folder = tmp_path_factory.mktemp("ddp")
    run = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29571")
    done = subprocess.run(
        [*run, str(PROGRAMS / f"{NAME}.py"), "run-{rank}.sqlite"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
        capture_output=True,
        text=True,
        timeout=80,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [folder / f"run-{rank}.sqlite" for rank in range(2)]


@pytest.mark.parametrize("rank", [0, 1])
def test_lines_and_named_reasons(ranks: list[Path], rank: int) -> None:
    with Trace.open(ranks[rank]) as trace:
        result = lines(trace, own=OWN)
    print(f"rank {rank}: {share(result.coverage)}")
    assert recorded(result, NAME) == marked(NAME)
    reasons = {u.reason: u.ns for u in result.coverage.unattributed}
    in_hooks = sum(ns for reason, ns in reasons.items() if reason.startswith(IN_HOOKS))
    assert in_hooks > 0
    # DDP copies gradients out of its buckets when all nodes are done: that is said too, and is all the rest.
    copies = sum(ns for reason, ns in reasons.items() if reason.startswith(AT_THE_END))
    with_name = result.coverage.attributed_ns + in_hooks
    print(f"with a line, or a name and the modules it works for: {with_name / result.coverage.gpu_ns:.4f}")
    assert result.coverage.attributed_ns + in_hooks + copies >= 0.99 * result.coverage.gpu_ns, reasons


@pytest.mark.parametrize("rank", [0, 1])
def test_reductions_name_the_modules_of_their_gradients(ranks: list[Path], rank: int) -> None:
    with Trace.open(ranks[rank]) as trace:
        found = hook_reductions(trace, trace.stacks.own_rows(Ownership(OWN)))
        communicates = operation_classes(trace.operations) == OperationClass.COMMUNICATION
        kernels = int((communicates & (trace.operations.kind == OperationKind.KERNEL)).sum())
    print(f"rank {rank}: {found}")
    # The last layer's gradients are there first; DDP's buckets after it hold what is left.
    assert {module for reduction in found for module in reduction.modules} == {"Head", "Trunk"}
    assert ("Head",) in [reduction.modules for reduction in found]
    assert sum(reduction.operations for reduction in found) == kernels and kernels >= 2 * STEPS
