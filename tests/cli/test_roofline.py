# SPDX-License-Identifier: Apache-2.0
"""profiling-lab roofline"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import TraceBuilder

import profiling_lab
from profiling_lab.analysis.roofline import peaks as rates
from profiling_lab.analysis.roofline.peaks import Peaks
from profiling_lab.cli import main

GPU = "NVIDIA H200"
UP = "/app/train.py:8 main > /app/model.py:5 Net.forward"
DOWN = "/app/train.py:8 main > /app/model.py:6 Net.forward"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def peaks_file(tmp_path: Path) -> str:
    """1 byte and 100 FLOPs per nanosecond."""
    path = tmp_path / "peaks.json"
    rates.save(Peaks(GPU, "measured 2026-11-23", 1e9, {"bfloat16": 100e9, "float32": 10e9}), path)
    return str(path)


def built() -> TraceBuilder:
    """Line 5: a product at half of its roof, then an activation on the roof of the memory, in two kernels.
    Line 6: many short kernels. Backward of line 5 runs on another thread.
    """
    builder = TraceBuilder().launch("before", 5_000, stack=UP)
    builder.row("PYREC_META", name="work_step", value="1").row("PYREC_META", name="work_state", value="on")
    product = {"kind": "matmul", "math": "bfloat16"}
    builder.operator(
        "aten::mm", 20_000, flops=1_000_000, read=3_000, written=1_000, stack=UP, peek=1, **product
    )
    builder.operator("aten::gelu", 9_000, 1_000, read=5_000, written=4_000, stack=UP)
    for _ in range(10):
        builder.operator("aten::add", 1_200, read=50, written=50, stack=DOWN)
    builder.operator("aten::empty_work", read=7, written=7)  # launched nothing
    builder.launch("allreduce", 14_000, stack=DOWN)
    builder.operator(
        "aten::mm",
        10_000,
        flops=900_000,
        read=1_000,
        written=1_000,
        thread=2,
        node=0,
        node_name="Mm",
        **product,
    )
    builder.row("TARGET_INFO_GPU", vmId=0, id=0, name=GPU)
    return builder


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return built().write(tmp_path / "run.sqlite")


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["roofline", *arguments, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_each_line_against_its_roof(
    recording: Path, peaks_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = rows(capsys, str(recording), "--peaks", peaks_file)
    up, down, back = data["data"]["rows"]
    assert (up["line"], up["phase"], up["gpu_ns"], up["kernels"], up["calls"]) == (5, "forward", 30_000, 3, 2)
    assert (up["flops"], up["bytes"], up["math"]) == (1_000_000, 13_000, "bfloat16")
    # the product at best in 10 µs of arithmetic, the activation in 9 µs of memory
    assert up["light_ns"] == 19_000 and up["roof_frac"] == round(19 / 30, 6) and up["limit"] == "compute"
    assert up["could_win_ns"] == 11_000
    assert up["operators"] == ["aten::mm", "aten::gelu"] and up["kinds"] == ["matmul", "elementwise"]
    assert (down["line"], down["light_ns"], down["limit"], down["flops"]) == (6, 1_000, "latency", None)
    assert (back["line"], back["phase"], back["gpu_ns"]) == (5, "backward", 10_000)
    assert back["roof_frac"] == 0.9 and back["flops_per_s"] == pytest.approx(9e10)
    summary = data["data"]["summary"]
    assert summary["source"] == "modelled" and summary["step"] == 1
    assert (summary["step_gpu_ns"], summary["counted_ns"], summary["light_ns"]) == (66_000, 52_000, 29_000)
    assert summary["uncounted"] == [{"name": "allreduce", "gpu_ns": 14_000}]


def test_table(recording: Path, peaks_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["roofline", str(recording), "--peaks", peaks_file]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "step 1: 66.000 µs of GPU time, 78.8 % of it in operators that are counted" in out
    assert "roof of NVIDIA H200, measured 2026-11-23: memory 1.0 GB/s; bfloat16 100 GFLOP/s" in out
    assert "not counted: 14.000 µs in allreduce" in out
    assert "compute: stop here" in out and "mm, gelu; bfloat16" in out
    assert "error" in out


def test_by_operator_and_kernel(recording: Path, peaks_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    ops = rows(capsys, str(recording), "--peaks", peaks_file, "--by", "op")["data"]["rows"]
    assert [row["key"] for row in ops] == ["aten::mm (bfloat16)", "aten::add", "aten::gelu"]
    assert ops[0]["flops"] == 1_900_000 and ops[0]["phase"] == "" and ops[2]["limit"] == "memory"
    kernels = rows(capsys, str(recording), "--peaks", peaks_file, "--by", "kernel")["data"]["rows"]
    assert {row["key"]: row["kernels"] for row in kernels} == {
        "mm_kernel0": 2,
        "add_kernel0": 10,
        "gelu_kernel0": 2,
    }


def test_a_kernel_has_its_occupancy_with_the_cause(
    tmp_path: Path, peaks_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = TraceBuilder().operator("aten::mm", 9_000, read=50, written=50, stack=UP, blocks=64)
    launched = builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0]
    launched |= {"registersPerThread": 255, "staticSharedMemory": 0, "dynamicSharedMemory": 0}
    sizes = {"smCount": 32, "computeMajor": 9, "maxWarpsPerSm": 64, "maxBlocksPerSm": 32}
    sizes |= {"maxRegistersPerSm": 65536, "maxShmemPerSm": 228 << 10}
    builder.row("TARGET_INFO_GPU", vmId=0, id=0, name=GPU, **sizes)
    path = builder.write(tmp_path / "run.sqlite")
    (row,) = rows(capsys, str(path), "--peaks", peaks_file, "--by", "kernel")["data"]["rows"]
    assert row["occupancy_estimate_frac"] == 0.125 and row["occupancy_limited_by"] == "registers"
    main(["roofline", str(path), "--peaks", peaks_file, "--by", "kernel"])
    assert (
        "<<<64x1x1, 128x1x1>>>, estimated occupancy 12.5 %, limited by registers" in capsys.readouterr().out
    )


def test_without_stacks_operators_are_still_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = TraceBuilder().operator("aten::add", 1_000, read=50, written=50).write(tmp_path / "run.sqlite")
    assert rows(capsys, str(path), "--by", "op")["data"]["total_matched"] == 1
    assert main(["roofline", str(path)]) == 3
    assert "no Python stacks" in capsys.readouterr().err


def test_the_vendors_figures_are_named_where_nothing_was_measured(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["roofline", str(recording)])
    assert "roof of NVIDIA H200, vendor figures: memory 4,800.0 GB/s" in capsys.readouterr().out


def test_what_was_measured_here_is_used(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates.save(Peaks(GPU, "measured today", 2e9, {"bfloat16": 1e12}), rates.cache_file(GPU))
    summary = rows(capsys, str(recording))["data"]["summary"]
    assert summary["peaks"]["source"] == "measured today"
    rates.cache_file(GPU).write_text("{")
    assert rows(capsys, str(recording))["data"]["summary"]["peaks"]["source"] == "vendor figures"


def test_an_unknown_gpu_has_rates_but_no_roof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = TraceBuilder().operator("aten::add", 1_000, read=500, written=500, stack=UP)
    path = builder.row("TARGET_INFO_GPU", vmId=0, id=0, name="NVIDIA X1").write(tmp_path / "run.sqlite")
    (row,) = rows(capsys, str(path))["data"]["rows"]
    assert (row["bytes_per_s"], row["roof_frac"], row["limit"]) == (10**9, None, "")
    main(["roofline", str(path)])
    assert "the rates of NVIDIA X1 are unknown: profiling-lab peaks" in capsys.readouterr().out


def test_rates_of_another_gpu_are_refused(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "a100.json"
    rates.save(Peaks("NVIDIA A100", "measured", 1e9, {}), other)
    assert main(["roofline", str(recording), "--peaks", str(other)]) == 2
    assert "has the rates of NVIDIA A100, but the recording is from NVIDIA H200" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": "profiling-lab-peaks/1"}', "nan"])
def test_a_file_that_holds_no_rates(
    recording: Path, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_text(text)
    assert main(["roofline", str(recording), "--peaks", str(tmp_path / "bad.json")]) == 4
    assert "bad.json" in capsys.readouterr().err


def test_a_recording_without_counted_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = TraceBuilder().launch("gemm", 1000, stack=UP).write(tmp_path / "run.sqlite")
    assert main(["roofline", str(path)]) == 3
    assert "record with `profiling-lab record --work`" in capsys.readouterr().err
    builder = TraceBuilder().launch("gemm", 1000, stack=UP)
    path = builder.row("PYREC_META", name="work_state", value="no step has ended").write(
        tmp_path / "2.sqlite"
    )
    assert main(["roofline", str(path)]) == 3
    assert "the recorder says: no step has ended" in capsys.readouterr().err


def test_a_part_without_the_counted_step(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["roofline", str(recording), "--range", "0us:5us"]) == 3
    assert "no GPU operation of that step is in this part" in capsys.readouterr().err


def test_damaged_rows_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = built()
    for values in ({"readBytes": -5}, {"readBytes": 1 << 62}, {"end": 0}, {"flops": -7}):
        row = dict(builder.rows["PYREC_WORK"][0]) | values
        builder.row("PYREC_WORK", **row)
    data = rows(capsys, str(builder.write(tmp_path / "run.sqlite")))
    assert all(row["bytes"] < 1 << 40 for row in data["data"]["rows"])


def test_plot(recording: Path, peaks_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "roof.html"
    assert main(["roofline", str(recording), "--peaks", peaks_file, "--plot", str(target)]) == 0
    page = target.read_text()
    assert page.count("<circle") >= 2 and "Bandwidth of rows without counted FLOPs" in page
    assert "/app/model.py:5" in page and "bfloat16 100 GFLOP/s" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_a_plot_replaces_plots_alone(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "roof.html"
    assert main(["roofline", str(recording), "--plot", str(target)]) == 0
    assert main(["roofline", str(recording), "--plot", str(target)]) == 0
    target.write_text("<!doctype html> mine")
    assert main(["roofline", str(recording), "--plot", str(target)]) == 2
    assert "is not a plot of roofline" in capsys.readouterr().err and "mine" in target.read_text()


def test_a_plot_without_a_roof(tmp_path: Path) -> None:
    path = TraceBuilder().operator(
        "aten::mm", 1_000, flops=1000, read=500, written=500, math="int8", stack=UP
    ).write(tmp_path / "run.sqlite")  # fmt: skip
    assert main(["roofline", str(path), "--plot", str(tmp_path / "roof.html")]) == 0
    assert "The roof is unknown" in (tmp_path / "roof.html").read_text()


def test_in_python(recording: Path, peaks_file: str) -> None:
    with profiling_lab.open(recording) as trace:
        table = trace.roofline(peaks=peaks_file, limit=1)
    assert [row.line for row in table.result.rows] == [5] and table.result.total_matched == 3
    assert table.result.rows[0].intensity == pytest.approx(1_000_000 / 13_000)


def test_every_name_in_the_vendors_table_is_found() -> None:
    for name, memory in {
        "NVIDIA H200": 4.8e12,
        "NVIDIA H100 PCIe": 2.0e12,
        "NVIDIA H100 80GB HBM3": 3.35e12,
        "NVIDIA GH200 480GB": 4.0e12,
        "NVIDIA A100-SXM4-80GB": 2.039e12,
        "NVIDIA A100-SXM4-40GB": 1.555e12,
        "NVIDIA L40S": 0.864e12,
        "Tesla V100-SXM2-16GB": 0.9e12,
    }.items():
        found = rates.vendor_peaks(name)
        assert found is not None and found.memory_bytes_per_s == pytest.approx(memory), name
    assert rates.vendor_peaks("NVIDIA GeForce MX150") is None


def test_the_report_has_the_plot(recording: Path, tmp_path: Path) -> None:
    assert main(["report", str(recording), "-o", str(tmp_path / "run.html")]) == 0
    page = (tmp_path / "run.html").read_text()
    section = page.partition('<section id="roofline">')[2].partition("</section>")[0]
    assert section.count("<circle") >= 2 and "vendor figures" in section and "style=" not in section
    assert (
        '<a href="#roofline">Roofline</a>' in page and "record with profiling-lab record --work" not in page
    )


def test_a_report_without_counted_work_says_what_would_count_it(tmp_path: Path) -> None:
    path = TraceBuilder().launch("gemm", 1000, stack=UP).write(tmp_path / "run.sqlite")
    assert main(["report", str(path), "-o", str(tmp_path / "run.html")]) == 0
    page = (tmp_path / "run.html").read_text()
    assert 'id="roofline"' not in page and "record with profiling-lab record --work" in page
