# SPDX-License-Identifier: Apache-2.0
"""What ran at the same time, by class and by stream."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from builders import TraceBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling_lab.analysis.overlap.overlap import OverlapResult, overlap
from profiling_lab.analysis.overlap.pairs import overlap_pairs
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.trace import Trace
from profiling_lab.trace.operation_classes import CLASS_NAMES, operation_classes

RECORDED = Path(__file__).resolve().parents[3] / "profiling_lab/exercises/e17_python_backtrace/recorded"
US = 1000
BEGIN = 2_000_000


def overlap_of(builder: TraceBuilder, folder: Path) -> OverlapResult:
    with Trace.open(builder.write(folder / "run.sqlite")) as trace:
        return overlap(trace)


def test_what_compute_hides_and_what_it_does_not(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("gemm", 100, start_ns=BEGIN)
    builder.launch("ncclDevKernel_AllReduce_Sum_f32", 80, start_ns=BEGIN + 60, stream=9)
    builder.copy("HtoD", 30, start_ns=BEGIN + 90, stream=11)
    builder.copy("DtoH", 10, start_ns=BEGIN + 200, stream=11)
    result = overlap_of(builder, tmp_path)
    found = {row.name: row for row in result.classes}
    assert list(found) == ["compute", "communication", "copy HtoD", "copy DtoH"]
    compute, communication, copy = (found[name] for name in ("compute", "communication", "copy HtoD"))
    assert (compute.busy_ns, compute.hidden_ns, compute.exposed_ns, compute.alone_ns) == (100, None, None, 60)
    assert (communication.hidden_ns, communication.exposed_ns, communication.alone_ns) == (40, 40, 20)
    assert (copy.hidden_ns, copy.exposed_ns, copy.alone_ns) == (10, 20, 0)
    assert dict(communication.with_ns) == {"compute": 40, "copy HtoD": 30}
    assert found["copy DtoH"].with_ns == () and found["copy DtoH"].alone_ns == 10
    (device,) = result.devices
    # 0-60 one, 60-90 two, 90-100 three, 100-120 two, 120-140 one, 140-200 none, 200-210 one.
    assert device.level_ns == (60, 60 + 20 + 10, 30 + 20, 10)
    assert {row.stream: (row.busy_ns, row.shared_ns, row.kernels) for row in result.streams} == {
        7: (100, 40, 1),
        9: (80, 60, 1),
        11: (40, 30, 0),
    }


def test_operations_of_one_stream_that_overlap(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("a", 100, start_ns=BEGIN).launch("b", 100, start_ns=BEGIN + 90)
    (device,) = overlap_of(builder, tmp_path).devices
    assert device.level_ns == (0, 190) and device.same_stream_ns == 10


def test_streams_of_two_devices_have_nothing_to_do_with_each_other(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("a", 100, start_ns=BEGIN).launch("b", 100, start_ns=BEGIN, device=1)
    builder.launch("c", 100, start_ns=BEGIN, pid=200)
    result = overlap_of(builder, tmp_path)
    assert [(d.pid, d.device, d.level_ns) for d in result.devices] == [
        (100, 0, (0, 100)),
        (100, 1, (0, 100)),
        (200, 0, (0, 100)),
    ]
    assert all(row.shared_ns == 0 for row in result.streams) and len(result.classes) == 3


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 60),
            st.integers(1, 40),
            st.sampled_from(["gemm", "ncclKernel", "HtoD", "DtoD"]),
            st.integers(1, 3),
        ),
        min_size=1,
        max_size=10,
    )
)
def test_against_an_oracle(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, str, int]]
) -> None:
    builder = TraceBuilder()
    for start, length, what, stream in rows:
        if what in ("HtoD", "DtoD"):
            builder.copy(what, length, start_ns=BEGIN + start, stream=stream)
        else:
            builder.launch(what, length, start_ns=BEGIN + start, stream=stream)
    result = overlap_of(builder, tmp_path_factory.mktemp("overlap"))
    names = {"gemm": "compute", "ncclKernel": "communication", "HtoD": "copy HtoD", "DtoD": "other copy"}
    moments = [
        ({names[w] for s, n, w, _ in rows if s <= t < s + n}, {k for s, n, _, k in rows if s <= t < s + n})
        for t in range(min(r[0] for r in rows), max(r[0] + r[1] for r in rows))
    ]
    for row in result.classes:
        mine = [running for running, _ in moments if row.name in running]
        assert row.busy_ns == len(mine) and row.alone_ns == sum(running == {row.name} for running in mine)
        if row.name != "compute":
            assert row.hidden_ns == sum("compute" in running for running in mine)
            assert row.busy_ns == (row.hidden_ns or 0) + (row.exposed_ns or 0)
        for other in CLASS_NAMES:
            if other != row.name:
                assert dict(row.with_ns).get(other, 0) == sum(other in running for running in mine)
    (device,) = result.devices
    assert sum(device.level_ns) == device.span_ns == len(moments)
    for level, ns in enumerate(device.level_ns):
        assert ns == sum(len(streams) == level for _, streams in moments)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication"),
        ("void ncclKernel_SendRecv<float>(int)", "communication"),
        ("multimem_all_reduce_kernel<c10::BFloat16>", "communication"),
        ("void vllm::cross_device_reduce_1stage<half, 8>", "communication"),
        ("two_shot_all_reduce_kernel", "communication"),
        ("nvshmemi_transfer_quiet", "communication"),
        ("flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<4>", "communication"),
        ("void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8>(Params)", "communication"),
        ("void deep_ep::intranode::dispatch<8, 768>(int4*)", "communication"),
        ("symm_mem_all_to_all_vdev", "communication"),
        ("multimem_reduce_scatter", "communication"),
        ("void LayerNorm<WarpAllReduce<float>>(float*)", "compute"),
        ("block_all_reduce_sum", "compute"),
        ("sm90_xmma_gemm_bf16", "compute"),
        ("reduce_kernel<512, 1>", "compute"),
        ("concat_kernel", "compute"),
    ],
)
def test_collectives_are_known_by_name(tmp_path: Path, name: str, expected: str) -> None:
    with Trace.open(TraceBuilder().launch(name, 10).write(tmp_path / "run.sqlite")) as trace:
        assert CLASS_NAMES[operation_classes(trace.operations)[0]] == expected


def test_nothing_to_look_at(tmp_path: Path) -> None:
    with (
        Trace.open(TraceBuilder().call("cudaMalloc").write(tmp_path / "run.sqlite")) as trace,
        pytest.raises(NotEnoughDataError),
    ):
        overlap(trace)


def test_fsdp_inference_copies_on_the_stream_it_computes_on(captures: Path) -> None:
    with Trace.open(captures / "fsdp_inference_2xh100.sqlite") as trace:
        result = overlap(trace)
    assert len(result.streams) == len(result.devices) == 2
    copies = [row for row in result.classes if row.name == "copy HtoD"]
    assert sum(row.busy_ns for row in copies) == pytest.approx(1842e6, rel=1e-3)
    for row in copies:
        assert row.hidden_ns == 0 and row.operations == 225


def test_the_demo() -> None:
    with Trace.open(RECORDED / "demo_h200.sqlite") as trace:
        result = overlap(trace)
    assert [row.name for row in result.classes] == ["compute", "copy HtoD", "copy DtoH", "memset"]
    (device,) = result.devices
    assert len(device.level_ns) == 2 and sum(row.busy_ns for row in result.classes) == device.level_ns[1]


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 40), st.sampled_from("abc"), st.integers(1, 3)),
        min_size=1,
        max_size=12,
    )
)
def test_pairs_against_an_oracle(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, str, int]]
) -> None:
    builder = TraceBuilder()
    for start, length, name, stream in rows:
        builder.launch(f"{name}<{start}>", length * US, start_ns=BEGIN + start * US, stream=stream)
    with Trace.open(builder.write(tmp_path_factory.mktemp("pairs") / "run.sqlite")) as trace:
        found = {(row.name, row.other): (row.times, row.together_ns) for row in overlap_pairs(trace)}
    expected: dict[tuple[str, str], tuple[int, int]] = {}
    for (s0, n0, w0, k0), (s1, n1, w1, k1) in combinations(rows, 2):
        together = min(s0 + n0, s1 + n1) - max(s0, s1)
        if k0 != k1 and together > 0:
            pair = (min(w0, w1), max(w0, w1))
            times, total = expected.get(pair, (0, 0))
            expected[pair] = (times + 1, total + together * US)
    assert found == expected


def test_pairs_come_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One long operation that overlaps very many: what is in memory at once has a bound."""
    builder = TraceBuilder().launch("long", 500 * US, start_ns=BEGIN, stream=1)
    for i in range(100):
        builder.launch("short", 2 * US, start_ns=BEGIN + i * 4 * US, stream=2)
    monkeypatch.setattr("profiling_lab.analysis.overlap.pairs._PAIRS_AT_ONCE", 7)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        (row,) = overlap_pairs(trace)
    assert (row.name, row.other, row.times, row.together_ns) == ("long", "short", 100, 200 * US)


def test_meeting_by_chance_is_no_pair(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("a", 10_000, start_ns=BEGIN, stream=1)
    builder.launch("b", 10_000, start_ns=BEGIN + 9_500, stream=2)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        assert overlap_pairs(trace) == ()
