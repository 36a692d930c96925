# SPDX-License-Identifier: Apache-2.0
"""Real captures, and what is known of them.

The program behind three of them (train_step.py): line 3 is `gelu(x@w)`, line 5 is
`layer(x,w).sum().backward()`, line 6 makes the two random inputs, line 7 calls 20 training steps.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from profiling_lab.analysis.coverage import coverage
from profiling_lab.analysis.info import info
from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.lines import lines
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.trace import Trace
from profiling_lab.trace.attribution import Match, Phase, Reason
from profiling_lab.trace.columns import OperationKind
from profiling_lab.trace.ownership import Ownership


def test_python_backtraces_of_nsys(captures: Path) -> None:
    with Trace.open(captures / "python_backtrace_h200.sqlite") as trace:
        kernels = trace.operations.kind == OperationKind.KERNEL
        assert kernels.sum() == 181
        assert trace.stacks_found.recorded == 91 and trace.stacks_found.without_call == 0
        result = lines(trace)
        rows = {row.line: row for row in result.rows}
        assert {row.file for row in result.rows} == {"/app/train_step.py"}
        assert sorted(rows) == [3, 5, 6]
        # Of 20 steps: gelu; sum, with its memset, and the first gradient; the two inputs.
        assert (rows[3].kernels, rows[3].copies, rows[3].function) == (20, 0, "layer")
        assert (rows[5].kernels, rows[5].copies, rows[5].function) == (40, 20, "train_step")
        assert (rows[6].kernels, rows[6].function) == (2, "<module>")
        assert (rows[3].forward_ns, rows[3].backward_ns) == (30944, 0)
        assert rows[6].forward_ns == 9824
        why = {u.reason: u.kernels for u in result.coverage.unattributed}
        assert sum(why.values()) == 201 - 82
        assert why["no Python stack recorded for the call (cudaLaunchKernelExC)"] == 40, "cuBLAS' launches"
        assert result.coverage.notes and "--pytorch=autograd-nvtx" in result.coverage.notes[0]
        # The 79 launches of the engine's thread are backward, by its name and by the native chains.
        assert (trace.attribution.phase == Phase.BACKWARD).sum() == 79 + 20


def test_every_stack_of_nsys_is_on_the_call_it_was_taken_for(captures: Path) -> None:
    """Against a join in SQL: the extra row starts with the stack and has the call's correlation id."""
    path = captures / "python_backtrace_h200.sqlite"
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as file:
        expected = dict(
            file.execute(
                "SELECT r.correlationId, json_extract(n.jsonText,"
                " '$.\"Python Backtrace on CUDA\".Frames[0].Line')"
                " FROM NVTX_EVENTS n JOIN CUPTI_ACTIVITY_KIND_RUNTIME r"
                " ON r.start = n.start AND r.globalTid = n.globalTid WHERE n.eventType = 34"
            )
        )
    file.close()
    with Trace.open(path) as trace:
        calls, stacks = trace.calls, trace.stacks
        found = {
            correlation: stacks.of(stack)[0].line
            for correlation, stack in zip(calls.correlation.tolist(), calls.stack.tolist(), strict=True)
            if stack
        }
    assert len(expected) == 91 and found == expected


def test_autograd_ranges_join_backward_with_forward(captures: Path) -> None:
    with Trace.open(captures / "autograd_nvtx_h200.sqlite") as trace:
        found = trace.attribution
        assert found.link == "ranges" and found.dropped_ranges == 0
        linked = found.match == Match.EXACT
        assert Counter(found.phase[linked].tolist()) == {Phase.BACKWARD: 60}
        adds = found.match == Match.NO_NUMBER
        assert adds.sum() == 19, "AccumulateGrad adds from the second step on"
        assert (found.reason[adds] == Reason.FORWARD_WITHOUT_STACK).all(), "this file has no Python stacks"
        result = lines(trace, by="range")
        rows = {row.key: (row.kernels, row.forward_ns > 0, row.backward_ns > 0) for row in result.rows}
        assert rows["aten::mm"] == (80, True, True)
        assert rows["aten::gelu"] == (40, True, True)
        assert rows["aten::sum"][2] is False, "its backward launches nothing"
        with pytest.raises(NotEnoughDataError, match="no Python stacks"):
            lines(trace)
        by_kernel = lines(trace, by="kernel")
        assert sum(row.gpu_ns for row in by_kernel.rows) == by_kernel.coverage.gpu_ns == 772863


def test_ranges_give_backward_the_python_line_of_forward(captures: Path, tmp_path: Path) -> None:
    """Both options in one file: stacks written into the capture with ranges, one for every forward call."""
    path = tmp_path / "both.sqlite"
    path.write_bytes((captures / "autograd_nvtx_h200.sqlite").read_bytes())
    with sqlite3.connect(path) as file:
        tid = file.execute("SELECT globalTid FROM NVTX_EVENTS WHERE text = 'forward' LIMIT 1").fetchone()[0]
        first = file.execute("SELECT max(id) FROM StringIds").fetchone()[0] + 1
        file.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [(first, "layer"), (first + 1, "/app/train_step.py")]
        )
        frame = f'{{"Function":{first},"File":{first + 1},"Line":3}}'
        payload = f'{{"Python Backtrace on CUDA":{{"Frames count":1,"Frames":[{frame}]}}}}'
        file.execute(
            "INSERT INTO NVTX_EVENTS (start, eventType, globalTid, domainId, jsonText)"
            " SELECT r.start, 34, r.globalTid, 1, ? FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN NVTX_EVENTS n"
            " ON n.globalTid = r.globalTid AND r.start BETWEEN n.start AND n.end"
            " WHERE n.text = 'forward' AND r.globalTid = ?",
            (payload, tid),
        )
    file.close()
    with Trace.open(path) as trace:
        (row,) = lines(trace).rows
        assert (row.file, row.line) == ("/app/train_step.py", 3)
        # mm with its split-k helper and gelu, 20 times, forward and backward; then the gradient.
        assert row.kernels == 120 + 19 and row.forward_ns > 0 and row.backward_ns > 0
        place = {s.phase for k in top_kernels(trace).rows for s in k.stacks if s.frames}
        assert place == {"forward", "backward"}


def test_samples_without_payload_are_named(captures: Path) -> None:
    with Trace.open(captures / "sampling_h200.sqlite") as trace:
        part = {part.key: part for part in info(trace).recorded}["python_samples"]
        assert (
            part.rows == 0 and "2,907 were recorded" in part.missing and "--include-json=true" in part.missing
        )
        assert len(trace.operations) == 201


def test_two_processes_join_on_process_and_id(captures: Path) -> None:
    with Trace.open(captures / "fsdp_inference_2xh100.sqlite") as trace:
        operations, found = trace.operations, trace.attribution
        kernels = operations.kind == OperationKind.KERNEL
        duration = operations.duration_ns
        linked, early = kernels & (found.call >= 0), kernels & (found.reason == Reason.NO_CALL)
        assert (linked.sum(), kernels.sum()) == (1632, 3442)
        assert duration[linked].sum() + duration[early].sum() == duration[kernels].sum() == 44829522
        assert duration[early].sum() == 21682293
        calls = trace.calls
        assert (operations.process[linked] == calls.process[found.call[linked]]).all()
        covered = coverage(trace, trace.stacks.own_rows(Ownership()))
        assert covered.devices == 2 and covered.kernels == 3442
        assert covered.attributed_ns + sum(u.ns for u in covered.unattributed) == covered.gpu_ns
        # 446 copies from the host keep two GPUs busy: by kernels alone they would look idle.
        rows = {row.key: row for row in lines(trace, by="kernel").rows}
        assert rows["memcpy HtoD"].gpu_ns == pytest.approx(1_842_000_000, rel=1e-3)
        assert covered.busy_ns / (2 * covered.span_ns) > 0.99


def test_nothing_of_the_captured_environment_is_read(captures: Path) -> None:
    with Trace.open(captures / "fsdp_inference_2xh100.sqlite") as trace:
        facts = repr(info(trace))
        with sqlite3.connect(f"file:{trace.path}?mode=ro&immutable=1", uri=True) as file:
            values = [v for (v,) in file.execute("SELECT value FROM META_DATA_CAPTURE") if v and len(v) > 6]
        file.close()
    assert values and not [value for value in values if value in facts]
