# SPDX-License-Identifier: Apache-2.0
"""Kernels: what a row is, how they were launched, and what that allows."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.analysis.kernels.kernels import KernelsResult, top_kernels
from profiling_lab.analysis.kernels.occupancy import occupancy_frac, sm_frac, theoretical
from profiling_lab.analysis.stats import Stats
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.trace import Trace
from profiling_lab.trace.extras import Device, LaunchShape
from profiling_lab.trace.kernel_names import base_name
from profiling_lab.trace.window import WindowSelection

RECORDED = Path(__file__).resolve().parents[2] / "profiling_lab/exercises/e17_python_backtrace/recorded"
H200 = Device("NVIDIA H200", 9, 132, 4_814_304_000_000, 64, 32, 65536, 233_472)
NAMES = ("void reduce<512>(float*)", "void reduce<256>(float*)")


def kernels_of(builder: TraceBuilder, folder: Path, **how: object) -> KernelsResult:
    with Trace.open(builder.write(folder / "run.sqlite")) as trace:
        return top_kernels(trace, **how)  # type: ignore[arg-type]


def shaped(
    builder: TraceBuilder, name: str, ns: int, blocks: int, threads: int = 128, **how: object
) -> TraceBuilder:
    """A kernel with a grid: 40 registers, no shared memory."""
    builder.launch(name, ns, short_name="reduce", **how)  # type: ignore[arg-type]
    row = builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][-1]
    row |= {"gridX": blocks, "gridY": 1, "gridZ": 1, "blockX": threads, "blockY": 1, "blockZ": 1}
    row |= {"registersPerThread": 40, "staticSharedMemory": 0, "dynamicSharedMemory": 0}
    return builder


@pytest.fixture
def builder() -> TraceBuilder:
    out = TraceBuilder()
    shaped(out, NAMES[0], 500, 132, stack="model.py:5 forward")
    shaped(out, NAMES[0], 300, 132, stack="model.py:6 forward")
    shaped(out, NAMES[0], 100, 66, stack="model.py:6 forward")
    shaped(out, NAMES[1], 40, 66)
    return out.copy("HtoD", 20)


def test_statistics(builder: TraceBuilder, tmp_path: Path) -> None:
    row = kernels_of(builder, tmp_path).rows[0]
    assert row.stats == Stats(3, 900, 300, 300, 100, 500, 200)
    assert (row.total_ns, row.count, row.average_ns, row.shortest_ns, row.longest_ns) == (
        900,
        3,
        300,
        100,
        500,
    )
    assert row.phases is None and row.shape is None and row.key == NAMES[0]


def test_what_a_row_is(builder: TraceBuilder, tmp_path: Path) -> None:
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:

        def rows(by: str) -> dict[tuple[str, str], int]:
            found = top_kernels(trace, group_by=by).rows  # type: ignore[arg-type]
            assert sum(row.total_ns for row in found) == 960
            return {(row.name, row.detail): row.total_ns for row in found}

        assert rows("short") == {("reduce", ""): 940, ("memcpy HtoD", ""): 20}
        assert rows("grid") == {
            (NAMES[0], "<<<132x1x1, 128x1x1>>>"): 800,
            (NAMES[0], "<<<66x1x1, 128x1x1>>>"): 100,
            (NAMES[1], "<<<66x1x1, 128x1x1>>>"): 40,
            ("memcpy HtoD", ""): 20,
        }
        assert rows("line") == {
            (NAMES[0], "model.py:5"): 500,
            (NAMES[0], "model.py:6"): 400,
            (NAMES[1], ":no Python stack"): 40,
            ("memcpy HtoD", ":no Python stack"): 20,
        }
        with pytest.raises(UsageError, match="group_by must be one of name, short, grid, line, shape"):
            rows("size")
        with pytest.raises(NotEnoughDataError, match="no shapes of operators' inputs"):
            rows("shape")


def test_by_operator_and_shapes_of_its_inputs(tmp_path: Path) -> None:
    """In backward by those of the forward operator: it is the one that the program wrote."""
    builder = TraceBuilder(form="nsys")
    for number, size in enumerate((64, 64, 128)):
        begin = builder.now_ns
        builder.launch("gemm", 100)
        sizes = f"sizes = [[{size}, 8], [8, 8]], input_op_ids = [(1, 0)]"
        builder.range(f"aten::mm, seq = {number}, op_id = {number}, {sizes}", begin, builder.now_ns - 1)
    engine = "autograd::engine::evaluate_function: MmBackward0"
    begin = builder.now_ns
    builder.launch("gemm", 1000, thread=2)
    for name in (engine, "MmBackward0"):
        builder.range(f"{name}, seq = 2, op_id = 9", begin, builder.now_ns - 1, thread=2)
    builder.launch("gemm", 7)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        rows = {row.detail: row.total_ns for row in top_kernels(trace, group_by="shape").rows}
        assert rows == {
            "aten::mm [[128, 8], [8, 8]]": 1100,
            "aten::mm [[64, 8], [8, 8]]": 200,
            "no operator": 7,
        }
        part = trace.windowed(WindowSelection(nvtx="aten::mm/2"))
        assert "aten::mm [[128, 8], [8, 8]]" in {
            row.detail for row in top_kernels(part, group_by="shape").rows
        }


def test_phases_are_of_kernels(builder: TraceBuilder, tmp_path: Path) -> None:
    rows = {row.name: row for row in kernels_of(builder, tmp_path, phases=True).rows}
    kernel, copy = rows[NAMES[0]].phases, rows["memcpy HtoD"].phases
    assert kernel and kernel.kernel.total == 900 and kernel.call.count == 3
    assert copy and copy.total.count == 0


def test_shapes_and_the_occupancy_they_allow(builder: TraceBuilder, tmp_path: Path) -> None:
    builder.row(
        "TARGET_INFO_GPU",
        vmId=0,
        id=0,
        name="NVIDIA H200",
        smCount=132,
        computeMajor=9,
        maxWarpsPerSm=64,
        maxBlocksPerSm=32,
        maxRegistersPerSm=65536,
        maxShmemPerSm=233_472,
    )
    rows = {row.name: row for row in kernels_of(builder, tmp_path, shapes=True).rows}
    shape = rows[NAMES[0]].shape
    assert shape and shape.usual.grid == (132, 1, 1) and shape.shapes == 2
    assert shape.sm_frac == pytest.approx((800 * 1 + 100 * 0.5) / 900)
    # One block of 4 warps on each of the SMs that have one, of 64.
    assert shape.occupancy_frac == pytest.approx((800 * 4 / 64 + 100 * 2 / 64) / 900)
    assert shape.limited_by == "registers" and rows["memcpy HtoD"].shape is None


def test_without_a_known_gpu_nothing_is_estimated(builder: TraceBuilder, tmp_path: Path) -> None:
    shape = kernels_of(builder, tmp_path, shapes=True).rows[0].shape
    assert shape and (shape.sm_frac, shape.occupancy_frac, shape.limited_by) == (None, None, "")


def test_a_file_without_grids(tmp_path: Path) -> None:
    with Trace.open(TraceBuilder().launch("gemm", 10).write(tmp_path / "run.sqlite")) as trace:
        # The schema has the columns, this row leaves them empty.
        (row,) = top_kernels(trace, group_by="grid", shapes=True).rows
        assert (row.detail, row.shape) == ("", None)
    minimal = tmp_path / "minimal.sqlite"
    minimal.write_bytes((tmp_path / "run.sqlite").read_bytes())
    with sqlite3.connect(minimal) as file:
        file.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN gridX")
    file.close()
    with (
        Trace.open(minimal) as trace,
        pytest.raises(NotEnoughDataError, match="does not say with which grids"),
    ):
        top_kernels(trace, group_by="grid")


def shape_of(blocks: int, threads: int, registers: int, shared: int) -> LaunchShape:
    return LaunchShape((blocks, 1, 1), (threads, 1, 1), registers, shared)


@pytest.mark.parametrize(
    ("shape", "occupancy", "limit"),
    [
        (shape_of(10_000, 1024, 32, 0), 1.0, "warps"),
        (shape_of(10_000, 1024, 33, 0), 0.5, "registers"),  # 40 registers each: 48 warps, one block of 32
        (shape_of(10_000, 32, 16, 0), 0.5, "blocks"),
        (shape_of(10_000, 128, 37, 49_152), 0.25, "shared memory"),
        (shape_of(10_000, 128, 255, 33_792), 0.125, "registers"),
        (shape_of(10_000, 256, 32, 232_448), 0.125, "shared memory"),
    ],
)
def test_what_one_sm_can_hold(shape: LaunchShape, occupancy: float, limit: str) -> None:
    """By hand, for 64 warps, 32 blocks, 65536 registers and 228 KiB of shared memory."""
    assert theoretical(H200, shape) == (occupancy, limit)
    assert occupancy_frac(H200, shape) == occupancy, "more blocks than the GPU can hold"
    assert sm_frac(H200, shape) == 1.0


def test_a_small_grid_leaves_the_gpu_empty() -> None:
    few = shape_of(33, 256, 32, 0)
    assert sm_frac(H200, few) == 0.25
    assert occupancy_frac(H200, few) == pytest.approx(33 * 8 / (132 * 64))
    unknown = LaunchShape((33, 1, 1), (256, 1, 1), None, 0)
    assert theoretical(H200, unknown) is None and occupancy_frac(H200, unknown) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(T3)", "reduce_kernel"),
        ("void at::native::(anonymous namespace)::cunn_SoftMax<float, 4>(float*, int)", "cunn_SoftMax"),
        ("void kernel<(int)1073741824>(float *)", "kernel"),
        (
            "ncclDevKernel_AllReduce_Sum_f32(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_f32",
        ),
        ("std::enable_if<!T7, void>::type internal::gemvx<int, float>(T1)", "gemvx"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("<lambda>", "<lambda>"),
        ("", ""),
    ],
)
def test_base_names(name: str, expected: str) -> None:
    assert base_name(name) == expected


@pytest.mark.parametrize("workers", [0, 4])
def test_occupancy_is_what_torch_profiler_estimated(captures: Path, workers: int) -> None:
    """Every kernel of these files notes an estimate of its own, in whole per cent."""
    path = captures / f"resnet50_num_workers_{workers}.pt.trace.json.gz"
    noted = {}
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        if event.get("cat") == "Kernel":
            args = event["args"]
            resources = (args["registers per thread"], args["shared memory"])
            shape = LaunchShape(tuple(args["grid"]), tuple(args["block"]), *resources)
            noted[shape] = args["est. achieved occupancy %"]
    with Trace.open(path) as trace:
        found = trace.launch_shapes
        (device,) = trace.devices.values()
    assert found and set(found.shapes) == noted.keys() and len(noted) > 150
    assert device.name == "Tesla V100-DGXS-32GB"
    for shape, percent in noted.items():
        ours = occupancy_frac(device, shape)
        assert ours is not None and abs(100 * ours - percent) <= 1, shape


def test_kernels_of_torch_profiler_by_grid(captures: Path) -> None:
    with Trace.open(captures / "resnet50_num_workers_0.pt.trace.json.gz") as trace:
        first = top_kernels(trace, group_by="grid", shapes=True).rows[0]
        total = top_kernels(trace).rows
        by_shape = top_kernels(trace, group_by="shape").rows
    assert sum(row.total_ns for row in by_shape) == sum(row.total_ns for row in total)
    # Backward is known by the operator of forward and what that was given.
    weights = {row.detail for row in by_shape if "wgrad_alg0_engine" in row.name}
    assert weights and all(detail.startswith("aten::cudnn_convolution [[32, ") for detail in weights)
    assert first.detail.startswith("<<<") and first.shape and first.shape.shapes == 1
    assert total[0].stats.total == 80_756_000


def test_the_demo() -> None:
    with Trace.open(RECORDED / "demo_h200.sqlite") as trace:
        result = top_kernels(trace, group_by="grid", phases=True, shapes=True)
        names = len(top_kernels(trace).rows)
        assert len(top_kernels(trace, group_by="short").rows) < names < len(result.rows)
    heavy = result.rows[0]
    assert heavy.short_name == "heavy_layer_slow_kernel" and heavy.detail == "<<<4096x1x1, 128x1x1>>>"
    assert heavy.shape and (heavy.shape.sm_frac, heavy.shape.occupancy_frac) == (1.0, 0.25)
    assert heavy.shape.limited_by == "shared memory"
