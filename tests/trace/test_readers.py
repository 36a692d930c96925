# SPDX-License-Identifier: Apache-2.0
"""Files of every form and age read as the same columns."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import pytest
from builders import TraceBuilder, parse_stack

from profiling_lab.trace import Trace
from profiling_lab.trace.attribution import Match, Phase, Reason
from profiling_lab.trace.columns import NO_SEQUENCE, OPEN_END, OperationKind

STACK = "/app/train.py:9 main > /app/model.py:4 Net.<lambda>"


def change(path: Path, *statements: str) -> Path:
    with sqlite3.connect(path) as file:
        for statement in statements:
            file.execute(statement)
    file.close()
    return path


def stacks_of(path: Path) -> list[str]:
    """Per operation its stack, innermost first."""
    with Trace.open(path) as trace:
        return [" > ".join(map(str, trace.stacks.of(s))) for s in trace.attribution.stack.tolist()]


@pytest.mark.parametrize("form", ["recorder", "nsys"])
def test_both_forms_of_stacks_read_alike(tmp_path: Path, form: str) -> None:
    path = (
        TraceBuilder(form=form)
        .launch("gemm", 100, stack=STACK)
        .launch("none", 100)
        .write(tmp_path / "t.sqlite")
    )
    assert stacks_of(path) == ["/app/model.py:4 Net.<lambda> > /app/train.py:9 main", ""]


def test_payloads_in_the_string_table_read_as_well(tmp_path: Path) -> None:
    builder = TraceBuilder(form="nsys").launch("gemm", 100)
    call = builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][0]
    builder.backtrace(call["start"], call["globalTid"], parse_stack(STACK), by_id=True)
    assert stacks_of(builder.write(tmp_path / "t.sqlite")) == [
        "/app/model.py:4 Net.<lambda> > /app/train.py:9 main"
    ]


def test_a_stack_inside_of_its_call_is_matched_by_time(tmp_path: Path) -> None:
    builder = TraceBuilder(form="nsys").launch("gemm", 100)
    call = builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][0]
    builder.backtrace(call["start"] + 700, call["globalTid"], parse_stack(STACK))
    builder.backtrace(call["start"] + 10**9, call["globalTid"], parse_stack(STACK))
    path = builder.write(tmp_path / "t.sqlite")
    assert stacks_of(path) == ["/app/model.py:4 Net.<lambda> > /app/train.py:9 main"]
    with Trace.open(path) as trace:
        assert trace.stacks_found.without_call == 1


def test_rows_that_carry_a_call_chain_are_no_calls(tmp_path: Path) -> None:
    path = TraceBuilder(form="nsys").launch("gemm", 100, stack=STACK).write(tmp_path / "t.sqlite")
    with Trace.open(path) as trace:
        assert trace.source.file.count("CUPTI_ACTIVITY_KIND_RUNTIME") == 2
        assert len(trace.calls) == 1
        assert trace.calls.names == ("cudaLaunchKernel",)


@pytest.mark.parametrize("on_extra_row", [True, False], ids=["extra-row", "on-the-call"])
def test_python_call_chains_hang_on_either_row(tmp_path: Path, on_extra_row: bool) -> None:
    builder = TraceBuilder(form="nsys").launch("gemm", 100, stack=STACK if on_extra_row else ())
    builder.rows.pop("NVTX_EVENTS", None)
    builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["callchainId"] = 0
    frames = [
        ("Net.forward", "/app/model.py:4"),
        ("main", "/app/train.py:9"),
        ("PyEval_EvalCode", "/usr/bin/python3"),
    ]
    for depth, (symbol, module) in enumerate(frames):
        builder.row(
            "CUDA_CALLCHAINS",
            id=0,
            symbol=builder.string(symbol),
            module=builder.string(module),
            stackDepth=depth,
        )
    path = builder.write(tmp_path / "t.sqlite")
    assert stacks_of(path) == ["/app/model.py:4 Net.forward > /app/train.py:9 main"]
    with Trace.open(path) as trace:
        assert trace.stacks_found.form == "call chains"


def test_native_chains_tell_backward_and_its_node(tmp_path: Path) -> None:
    builder = TraceBuilder(form="nsys").launch("gemm_bwd", 100, thread=2, stack=STACK)
    builder.rows.pop("NVTX_EVENTS")
    builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["callchainId"] = 5
    symbols = [
        "cudaLaunchKernel",
        "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)",
        "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)",
    ]
    for depth, symbol in enumerate(symbols):
        builder.row(
            "CUDA_CALLCHAINS",
            id=5,
            symbol=builder.string(symbol),
            module=builder.string("libtorch.so"),
            stackDepth=depth,
        )
    with Trace.open(builder.write(tmp_path / "t.sqlite")) as trace:
        assert trace.attribution.phase.tolist() == [Phase.BACKWARD]
        assert trace.attribution.reason.tolist() == [Reason.FORWARD_UNKNOWN]
        assert trace.calls.node_names[trace.calls.node_name[0]] == "MmBackward0"


def test_threads_of_the_engine_are_backward_by_their_name(tmp_path: Path) -> None:
    builder = TraceBuilder(form="nsys").launch("gemm", 100).launch("gemm_bwd", 100, thread=2)
    builder.row("ThreadNames", nameId=builder.string("pt_autograd_0"), priority=20, globalTid=builder.tid(2))
    with Trace.open(builder.write(tmp_path / "t.sqlite")) as trace:
        assert trace.attribution.phase.tolist() == [Phase.FORWARD, Phase.BACKWARD]


def test_two_processes_with_the_same_ids_are_kept_apart(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for pid, where in ((100, "a.py:1 a"), (200, "b.py:2 b")):
        builder.launch("gemm", 100, pid=pid, correlation=1, stack=where)
    builder.launch("early", 50, pid=200, correlation=9, recorded=False)
    path = builder.write(tmp_path / "t.sqlite")
    assert stacks_of(path) == ["a.py:1 a", "b.py:2 b", ""]
    with Trace.open(path) as trace:
        assert trace.attribution.reason.tolist()[-1] == Reason.NO_CALL
        assert trace.pids == (100, 200)


def test_ids_above_the_sign_bit_are_masked_as_bits(tmp_path: Path) -> None:
    path = TraceBuilder().launch("gemm", 100, stack=STACK).write(tmp_path / "t.sqlite")
    high = -(1 << 63)
    change(
        path,
        f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = globalPid | {high}",
        f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET globalTid = globalTid | {high}",
        f"UPDATE PYREC_LAUNCH SET globalTid = globalTid | {high}",
    )
    assert stacks_of(path) == ["/app/model.py:4 Net.<lambda> > /app/train.py:9 main"]
    with Trace.open(path) as trace:
        assert trace.calls.thread.tolist() == [0] and trace.attribution.reason.tolist() == [Reason.ATTRIBUTED]
        assert trace.pids == (100,)


def test_an_old_schema_without_a_process_in_the_kernel_table(tmp_path: Path) -> None:
    path = TraceBuilder(form="nsys").launch("gemm", 100, stack=STACK).write(tmp_path / "t.sqlite")
    change(path, "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN globalPid")
    assert stacks_of(path) == ["/app/model.py:4 Net.<lambda> > /app/train.py:9 main"]


def test_suffixed_tables_the_newest_wins(tmp_path: Path) -> None:
    path = TraceBuilder().launch("gemm", 100, stack=STACK).write(tmp_path / "t.sqlite")
    change(
        path,
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO CUPTI_ACTIVITY_KIND_KERNEL_V3",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL_V2 (start INTEGER, end INTEGER)",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME RENAME TO CUPTI_ACTIVITY_KIND_RUNTIME_V2",
    )
    with Trace.open(path) as trace:
        assert trace.operations.names == ("gemm",)
    assert stacks_of(path) == ["/app/model.py:4 Net.<lambda> > /app/train.py:9 main"]


def test_nulls_at_the_head_of_a_column_do_not_decide_its_type(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for _ in range(3):
        builder.range("no number", 1, 2)
    builder.rows["NVTX_EVENTS"][0] |= {"text": None, "textId": builder.string("by id"), "end": None}
    with Trace.open(builder.launch("gemm", 1).write(tmp_path / "t.sqlite")) as trace:
        ranges = trace.ranges
        assert [ranges.names[i] for i in ranges.name.tolist()] == ["by id", "no number", "no number"]
        assert ranges.end_ns.tolist() == [OPEN_END, 2, 2]


def test_operator_texts_are_cut_into_name_and_number(tmp_path: Path) -> None:
    texts = {
        "aten::mm, seq = 4, op_id = 8, sizes = [[2, 3], [3, 4]]": ("aten::mm", 4),
        "aten::empty, op_id = 2": ("aten::empty", NO_SEQUENCE),
        "aten::mul, sizes = [[2]]": ("aten::mul", NO_SEQUENCE),
        "forward": ("forward", NO_SEQUENCE),
        "Büro, and more": ("Büro, and more", NO_SEQUENCE),
    }
    builder = TraceBuilder().launch("gemm", 1)
    for i, text in enumerate(texts):
        builder.range(text, i, i + 1)
    with Trace.open(builder.write(tmp_path / "t.sqlite")) as trace:
        ranges = trace.ranges
        found = [
            (ranges.names[n], s) for n, s in zip(ranges.name.tolist(), ranges.sequence.tolist(), strict=True)
        ]
    assert found == list(texts.values())


def test_every_kind_of_operation_is_read(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("gemm<float>", 10).copy("HtoD", 20, size_bytes=77).memset(5)
    builder.operation(
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", 40, {"graphId": 3}, api="cudaGraphLaunch_v10000", stack=STACK
    )
    with Trace.open(builder.write(tmp_path / "t.sqlite")) as trace:
        operations = trace.operations
        assert operations.kind.tolist() == [*OperationKind]
        assert [operations.names[i] for i in operations.name] == [
            "gemm<float>",
            "memcpy HtoD",
            "memset",
            "CUDA graph",
        ]
        assert operations.size_bytes.tolist()[:3] == [0, 77, 4]
        assert trace.attribution.reason.tolist()[-1] == Reason.ATTRIBUTED


def test_a_clock_that_went_backwards_is_repaired_and_counted(tmp_path: Path) -> None:
    path = TraceBuilder().launch("gemm", 10).launch("gemm", 10).write(tmp_path / "t.sqlite")
    change(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 5 WHERE correlationId = 1")
    with Trace.open(path) as trace:
        assert sorted(trace.operations.duration_ns.tolist()) == [0, 10]
        assert list(trace.repairs.values()) == [1]


def test_impossible_times_are_left_out_and_counted(tmp_path: Path) -> None:
    path = TraceBuilder().launch("gemm", 10).copy("HtoD", 7).launch("gemm", 20).write(tmp_path / "t.sqlite")
    change(path, f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = {-(2**63)} WHERE correlationId = 1")
    with Trace.open(path) as trace:
        assert trace.operations.duration_ns.tolist() == [20, 7]
        assert [trace.operations.names[i] for i in trace.operations.name] == ["gemm", "memcpy HtoD"]
        assert list(trace.repairs.values()) == [1]


def test_texts_that_are_no_utf8_are_replaced(tmp_path: Path) -> None:
    path = TraceBuilder().launch("gemm", 10).write(tmp_path / "t.sqlite")
    change(path, "UPDATE StringIds SET value = CAST(X'67ff65' AS TEXT) WHERE value = 'gemm'")
    with Trace.open(path) as trace:
        assert trace.operations.names == ("g\ufffde",)


def test_an_inner_driver_call_does_not_take_the_launch(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("gemm", 10, stack=STACK)
    outer = builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][0]
    inner = outer | {"start": outer["start"] + 5, "eventClass": 1, "nameId": builder.string("cuLaunchKernel")}
    builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"].insert(0, inner)
    with Trace.open(builder.write(tmp_path / "t.sqlite")) as trace:
        assert trace.calls.names[trace.calls.name[trace.attribution.call[0]]] == "cudaLaunchKernel"
        assert trace.attribution.match.tolist() == [Match.OWN]


def test_reading_never_alters_the_file(tmp_path: Path) -> None:
    path = TraceBuilder().launch("gemm", 10, stack=STACK).write(tmp_path / "t.sqlite")
    path.chmod(0o444)
    before = hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns
    with Trace.open(path) as trace:
        trace.attribution  # noqa: B018
    assert (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) == before
    assert [p.name for p in tmp_path.iterdir()] == ["t.sqlite"], "no side files"


def test_names_with_signs_that_mean_something_in_an_uri(tmp_path: Path) -> None:
    path = TraceBuilder().launch("gemm", 10).write(tmp_path / "a b%20?mode=rwc#x.sqlite")
    with Trace.open(path) as trace:
        assert len(trace.operations) == 1


def test_a_write_ahead_log_is_read_too(tmp_path: Path) -> None:
    path = TraceBuilder().launch("gemm", 10).launch("gemm", 10).write(tmp_path / "t.sqlite")
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId = 1")
    writer.commit()
    try:
        with Trace.open(path) as trace:
            assert len(trace.operations) == 1
    finally:
        writer.close()
