# SPDX-License-Identifier: Apache-2.0
"""XPlane files of XLA's profiler: made ones of a GPU, and one that JAX wrote on a CPU."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from made_traces.xplane import CUDA, MODULE, PROGRAM, ROCM, TRAIN, PlaneBuilder, hlo, training, write_space

from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.lines import lines
from profiling_lab.analysis.memory.peaks import memory_peaks
from profiling_lab.cli import main
from profiling_lab.errors import NotEnoughDataError, UnreadableInputError
from profiling_lab.rules import RULES, run
from profiling_lab.rules.finding import with_effects
from profiling_lab.trace import Trace
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import MemoryKind, OperationKind
from profiling_lab.trace.extras import LaunchShape
from profiling_lab.trace.stacks import Frame
from profiling_lab.trace.step_windows import step_windows

pytest.importorskip("google.protobuf", reason="protobuf, which reads XPlane files, is not installed")

TORCH = re.compile(r"(?i:torch|\bnsys)|\bNVTX\b|profiling-lab record|DataLoader|\bDDP\b|FSDP")
NVIDIA = re.compile(r"(?i:cupti|nsys|\bncu\b|nsight|profiling-lab record|tensor core)|cuDNN|\bNCCL\b")


@pytest.fixture(params=[CUDA, ROCM], ids=["cuda", "rocm"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_space(tmp_path / "host.xplane.pb", training(request.param))


@pytest.fixture
def on_the_cpu(repo: Path) -> Path:
    return repo / "tests" / "data" / "xplane" / "cpu.xplane.pb"


def fields_of(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message, without protobuf."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 2: 0, 5: 4}[key & 7] or varint()
        yield key >> 3, data[at : at + size]
        at += size


def numbers(data: bytes) -> dict[int, int]:
    return {number: value for number, value in fields_of(data) if isinstance(value, int)}


def parts(data: bytes, wanted: int) -> list[bytes]:
    return [value for number, value in fields_of(data) if number == wanted and isinstance(value, bytes)]


def durations_ns(path: Path) -> dict[str, list[int]]:
    """By name, of all events in streams of GPUs."""
    out: dict[str, list[int]] = {}
    for plane in parts(path.read_bytes(), 1):
        if not parts(plane, 2)[0].startswith(b"/device:GPU:"):
            continue
        entries = [(numbers(entry)[1], parts(entry, 2)[0]) for entry in parts(plane, 4)]
        names = {key: parts(value, 2)[0].decode() for key, value in entries}
        for line in parts(plane, 3):
            for event in parts(line, 4) if parts(line, 2)[0].startswith(b"Stream") else ():
                known = numbers(event)
                out.setdefault(names[known[1]], []).append(known[3] // 1000)
    return out


def test_totals_agree_with_the_bytes(path: Path) -> None:
    wanted = {name.removesuffix(".kd"): (len(ns), sum(ns)) for name, ns in durations_ns(path).items()}
    with Trace.open(path) as trace:
        found = {row.name: (row.count, row.total_ns) for row in top_kernels(trace, limit=None).rows}
        assert found.pop("memcpy HtoD") == wanted.pop("MemcpyH2D")
        assert found == wanted and sum(ns for _, ns in found.values()) > 0
        assert trace.operations.size_bytes.sum() == 4 * 4096


def test_operations_have_the_lines_that_they_were_traced_from(path: Path) -> None:
    with Trace.open(path) as trace:
        rows = {(row.file, row.line): row for row in lines(trace).rows}
        assert {*rows} == {(TRAIN, 5), (TRAIN, 6)}, "a fusion has the line of its root, not one of a library"
        product, gelu = rows[TRAIN, 5], rows[TRAIN, 6]
        assert product.forward_ns == product.backward_ns == gelu.forward_ns > 0 == gelu.backward_ns
        stacks = {trace.stacks.of(row) for row in range(1, len(trace.stacks))}
        assert (Frame("layer", TRAIN, 5), Frame("step", TRAIN, 15)) in stacks


def test_what_has_no_line_stays_unknown(path: Path) -> None:
    with Trace.open(path) as trace:
        operations, found = trace.operations, trace.attribution
        without = {operations.names[i] for i in operations.name[found.stack == 0]}
        assert without == {"copy_4", "memcpy HtoD"}
        assert (found.call >= 0).all()
        backward = found.phase == Phase.BACKWARD
        assert int(backward.sum()) == 4 and (found.stack[backward] > 0).all()


def test_a_call_that_launches_several_operations_has_no_line_of_one(tmp_path: Path) -> None:
    """A command buffer, which XLA replays as a CUDA graph."""
    metadata, gpu, host = (
        PlaneBuilder("/host:metadata"),
        PlaneBuilder("/device:GPU:0"),
        PlaneBuilder("/host:CPU"),
    )
    host.event((1, "python"), "cuGraphLaunch", 6_000, 7_000, correlation_id=1)
    host.event((1, "python"), "cuGraphLaunch", 8_000, 9_000, correlation_id=2)
    for i, (correlation, operation) in enumerate(
        [(1, "dot.1"), (1, "gelu_fusion"), (2, "dot.1"), (2, "dot.1")]
    ):
        known = {"correlation_id": correlation, "hlo_op": operation, "program_id": PROGRAM}
        gpu.event((7, "Stream #7"), operation, 10_000 + 100 * i, 10_050 + 100 * i, **known)
    programs = {f"{MODULE}({PROGRAM})": hlo()}
    path = write_space(tmp_path / "a.xplane.pb", [metadata.encoded(programs), gpu.encoded(), host.encoded()])
    with Trace.open(path) as trace:
        assert (trace.attribution.stack > 0).tolist() == [False, False, True, True]


def test_programs_of_one_name_are_not_mixed_up(tmp_path: Path) -> None:
    """Without the id of its program an operation has a line only where the name says which it is."""

    def stacks(programs: dict[str, bytes]) -> list[bool]:
        metadata, gpu = PlaneBuilder("/host:metadata"), PlaneBuilder("/device:GPU:0")
        host = PlaneBuilder("/host:CPU")
        host.event((1, "python"), "cuLaunchKernel", 6_000, 7_000, correlation_id=1)
        gpu.event((7, "Stream #7"), "dot", 8_000, 9_000, correlation_id=1, hlo_op="dot.1", hlo_module=MODULE)
        planes = [metadata.encoded(programs), gpu.encoded(), host.encoded()]
        with Trace.open(write_space(tmp_path / "a.xplane.pb", planes)) as trace:
            return (trace.attribution.stack > 0).tolist()

    assert stacks({f"{MODULE}(3)": hlo()}) == [True]
    assert stacks({f"{MODULE}(3)": hlo(), f"{MODULE}(4)": hlo()}) == [False]


def test_steps_calls_and_ranges_are_told_apart(path: Path) -> None:
    with Trace.open(path) as trace:
        steps = step_windows(trace)
        assert (steps.sign, steps.names) == ("range", tuple(f"train step {i}" for i in range(4)))
        assert len(trace.calls) == 24 and not any(name.startswith("$") for name in trace.calls.names)
        python = {trace.ranges.names[i] for i in trace.ranges.name[trace.ranges.domain == 1]}
        assert python == {"$train.py:14 step"} and trace.ranges.domains == {1: "Python"}
        assert len(trace.ranges) == 8, "an allocation has no length"
        assert trace.pids == (4321,)
        names = trace.source.thread_names()
        assert {*names.values()} == {"python", "py_xla_execute"}


def test_properties_of_the_gpu_and_its_launches(path: Path) -> None:
    is_amd = "hip" in path.read_bytes().decode("latin-1")
    with Trace.open(path) as trace:
        (gpu,), devices = trace.gpus, trace.devices
        assert gpu.memory_bytes == 80 << 30 and gpu.multiprocessors == 132
        assert gpu.compute == ("" if is_amd else "9.0"), "AMD's numbers are no compute capability"
        assert devices[0, 0].memory_bytes_per_s == (None if is_amd else 3_350 * 10**9)
        assert trace.launch_shapes is not None
        registers = None if is_amd else 40
        assert trace.launch_shapes.shapes == (LaunchShape((64, 2, 1), (128, 1, 1), registers, 1536),)
        copies = trace.operations.kind == OperationKind.COPY
        assert {*trace.operations.source_memory[copies].tolist()} == {MemoryKind.PAGEABLE}
        assert {*trace.operations.target_memory[copies].tolist()} == {MemoryKind.DEVICE}
        assert {*trace.operations.stream.tolist()} == {13, 14}
        (peak,) = memory_peaks(trace) or ()
        assert (peak.device, peak.peak_bytes) == (0, 4 << 20)


def test_times_count_from_the_profile_or_from_1970(path: Path, tmp_path: Path) -> None:
    with Trace.open(path) as trace:
        assert trace.source.wall_clock(trace) == 1_700_000_000_000_000_000
    gpu = PlaneBuilder("/device:GPU:0", line_start_ns=1_600_000_000_000_000_000)
    gpu.event((1, "Stream #1"), "k", gpu.line_start_ns + 5, gpu.line_start_ns + 9)
    with Trace.open(write_space(tmp_path / "old.xplane.pb", [gpu.encoded()])) as trace:
        assert trace.source.wall_clock(trace) == 0
        assert trace.operations.start_ns.tolist() == [1_600_000_000_000_000_005]


def test_a_file_of_jax_on_a_cpu(on_the_cpu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(on_the_cpu)]) == 0
    said = capsys.readouterr().out
    assert "jax 0.10.2, jaxlib 0.10.2" in said and "2026-" in said
    assert main(["kernels", str(on_the_cpu)]) == 3
    assert "the program ran on the CPU" in capsys.readouterr().err
    with Trace.open(on_the_cpu) as trace:
        steps = [name for name in trace.ranges.names if name.startswith("train")]
        assert steps == [f"train step {i}" for i in range(4)]


def test_the_call_stacks_of_a_program_that_jax_wrote(on_the_cpu: Path) -> None:
    from profiling_lab.trace.xplane.hlo import Programs
    from profiling_lab.trace.xplane.space import read_space

    space = read_space(on_the_cpu)
    used = {
        (event.stats["program_id"], event.stats["hlo_op"])
        for plane in space.planes
        for line in plane.lines
        for event in line.events
        if "hlo_op" in event.stats
    }
    programs = Programs(space.modules)
    origins = {operation: programs.origin(program, "", operation) for program, operation in used}
    stacks = programs.builder.build()
    named = {operation: stacks.of(origin.stack) for operation, origin in origins.items()}
    assert all(named.values()), "every operation that ran has its line"
    product = named["ynn_fusion.1"]
    assert [(frame.function, frame.line) for frame in product] == [
        ("layer", 5), ("loss", 10), ("step", 15), ("<module>", 20),
    ]  # fmt: skip
    assert {frame.file for frame in product} == {"/tmp/demo/train.py"}
    assert not origins["ynn_fusion.1"].is_backward and origins["dot"].is_backward
    assert named["dot"] == product, "a backward product has the line of forward"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def packed_and_cut(path: Path) -> None:
    path.write_bytes(gzip.compress(path.read_bytes()))
    cut(path)


def overwritten(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:200] + b"\xff" * (len(data) - 200))


@pytest.mark.parametrize("damage", [cut, packed_and_cut, overwritten])
def test_bad_input_is_one_sentence(
    path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    damage(path)
    assert main(["kernels", str(path)]) == UnreadableInputError.exit_code
    (line,) = capsys.readouterr().err.splitlines()
    assert "truncated or damaged" in line and str(path) in line


def test_gzip_is_read(path: Path) -> None:
    packed = path.with_suffix(".pb.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with Trace.open(path) as trace, Trace.open(packed) as other:
        assert np.array_equal(trace.operations.start_ns, other.operations.start_ns)


def test_a_tpu_is_named(tmp_path: Path) -> None:
    tpu = PlaneBuilder("/device:TPU:0")
    tpu.event((1, "XLA Ops"), "fusion.1", 6_000, 7_000)
    with Trace.open(write_space(tmp_path / "t.xplane.pb", [tpu.encoded()])) as trace:
        assert not len(trace.operations)
        with pytest.raises(NotEnoughDataError, match="its device is a TPU"):
            lines(trace)


@pytest.mark.parametrize(
    "command",
    [
        ["info"], ["kernels"], ["lines"], ["lines", "--by", "function"], ["steps"], ["gaps"], ["ranges"],
        ["check", "--fail-on", "never"], ["apis"], ["copies"], ["streams"], ["overlap"], ["syncs"],
        ["critical-path"], ["kernels", "--group-by", "shape"], ["collectives"], ["memory"], ["roofline"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_commands_speak_of_jax(path: Path, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    status = main([*command[:1], str(path), *command[1:]])
    said = "".join(capsys.readouterr()).replace("(activity records of CUPTI)", "")
    without = command[0] in ("collectives", "memory", "roofline") or "shape" in command
    assert status == (3 if without else 0), said
    if command != ["collectives"]:  # which says for which libraries it looked
        assert not TORCH.search(said), TORCH.findall(said)
    if "hip" in path.read_bytes().decode("latin-1") and command != ["collectives"]:
        assert not NVIDIA.search(said), NVIDIA.findall(said)


def test_report_and_diff_read_it(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(path), "-o", str(page)]) == 0
    assert "train.py" in page.read_text()
    assert main(["diff", str(path), str(path)]) == 0
    assert "NO CHANGE" in capsys.readouterr().out


def test_findings_are_in_the_words_of_jax(path: Path) -> None:
    with Trace.open(path) as trace:
        checked = run(trace, RULES, whole=True)
    said = [f"{one.what} {one.remedy} {one.cost_of}" for one in with_effects(checked.findings)]
    said += [f"{abstain.reason} {abstain.to_record}" for _, abstain in checked.abstained]
    assert checked.findings and not TORCH.search(" ".join(said)), TORCH.findall(" ".join(said))
