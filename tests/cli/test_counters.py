# SPDX-License-Identifier: Apache-2.0
"""profiling-lab counters, and sampled counters in roofline"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import VM, TraceBuilder

import profiling_lab
from profiling_lab.cli import main
from profiling_lab.trace import Trace

UP = "/app/train.py:8 main > /app/model.py:5 Net.forward"
DOWN = "/app/train.py:8 main > /app/model.py:6 Net.forward"
HOW = "record with `profiling-lab record --counters`"
REAL = Path(__file__).parents[1] / "data" / "counters_h200" / "copies_and_products.sqlite.gz"
SAMPLE_NS = 2_500
RATES = {"mm_kernel0": 2, "add_kernel0": 5}
"""bytes read in a nanosecond; half as many are written"""


def built() -> TraceBuilder:
    """Line 5 has a product and line 6 a sum, 40 times; the work of the last ones is counted."""
    builder = TraceBuilder().row("PYREC_META", name="work_step", value="1")
    builder.row("PYREC_META", name="work_state", value="on")
    for i in range(40):
        up, down = 13_000 + 700 * (i % 7), 6_000 + 900 * (i % 5)
        if i < 38:
            builder.launch("mm_kernel0", up, stack=UP).launch("add_kernel0", down, stack=DOWN)
        else:
            builder.operator("aten::mm", up, flops=10, read=1_000, written=1_000, stack=UP)
            builder.operator("aten::add", down, read=1_000, written=1_000, stack=DOWN)
    return builder


def with_samples(tmp_path: Path, samples: int = 400) -> Path:
    """Samples that add up what the kernels move."""
    with Trace.open(built().write(tmp_path / "without.sqlite")) as trace:
        operations = trace.operations
        names = [operations.short_names[i] for i in operations.name.tolist()]
        spans = list(zip(names, operations.start_ns.tolist(), operations.end_ns.tolist(), strict=True))
    builder = built()
    first = spans[0][1]
    for number in range(samples):
        start = first + number * SAMPLE_NS
        moved = sum(
            RATES[name] * max(0, min(end, start + SAMPLE_NS) - max(begin, start))
            for name, begin, end in spans
        )
        builder.row(
            "PYREC_COUNTERS", start=start, end=start + SAMPLE_NS, globalPid=VM | builder.pid << 24,
            deviceId=0, dramReadBytes=moved, dramWrittenBytes=moved // 2,
        )  # fmt: skip
    builder.row("PYREC_META", name="counters_state", value="on")
    return builder.write(tmp_path / "run.sqlite")


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert main([*map(str, arguments), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)["data"]


def test_each_line_has_what_its_kernels_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "counters", with_samples(tmp_path))
    assert data["summary"] == {"samples": 400, "period_ns": SAMPLE_NS}
    rows = {row["line"]: row for row in data["rows"] if row["line"]}
    for line, name in ((5, "mm_kernel0"), (6, "add_kernel0")):
        moved = RATES[name] * rows[line]["gpu_ns"]
        assert rows[line]["dram_read_bytes"] == pytest.approx(moved, rel=0.02)
        assert rows[line]["dram_written_bytes"] == pytest.approx(moved / 2, rel=0.02)
        assert rows[line]["dram_read_rate"] == pytest.approx(RATES[name] * 1e9, rel=0.02)
        assert "tensor_frac" not in rows[line], "this GPU does not sample it"


def test_roofline_shows_the_measured_bandwidth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = with_samples(tmp_path)
    rows = {row["line"]: row for row in answer(capsys, "roofline", file)["rows"]}
    assert rows[5]["sampled_bytes_per_s"] == pytest.approx(3e9, rel=0.02)
    assert rows[6]["sampled_bytes_per_s"] == pytest.approx(7.5e9, rel=0.02)
    assert rows[5]["sampled_error_bytes_per_s"] < 0.05 * 3e9
    assert main(["roofline", str(file)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "source of `measured`: hardware counters, sampled in all steps" in out and "7.5 GB/s" in out
    assert main(["roofline", str(built().write(tmp_path / "plain.sqlite"))]) == 0
    assert "measured" not in capsys.readouterr().out


def test_a_real_recording(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["counters", str(REAL)]) == 0
    out = capsys.readouterr().out
    assert "3,806 samples of hardware counters, one every 99.999 µs" in out
    assert "-: not known so well" in out
    first = answer(capsys, "counters", REAL, "--limit", "1")["rows"]
    assert [row["key"] for row in first] == ["(idle)"]


def test_a_part_of_the_recording(capsys: pytest.CaptureFixture[str]) -> None:
    whole = answer(capsys, "counters", REAL)["rows"]
    with profiling_lab.open(REAL) as trace:
        assert [row.key for row in trace.counters().result.rows] == [row["key"] for row in whole]
        operations = trace.trace.operations
        middle = float(np.median(operations.start_ns) - operations.start_ns.min()) * 1e-9
        part = trace.window(range=f"0s:{middle}s").counters().result
    assert sum(row.gpu_ns for row in part.rows if row.line) < sum(
        row["gpu_ns"] for row in whole if row["line"]
    )


@pytest.mark.parametrize(
    ("state", "words"),
    [("", HOW), ("GPU 0: ERR_NVGPUCTRPERM", "the recorder says: GPU 0: ERR_NVGPUCTRPERM"), ("on", HOW)],
)
def test_a_recording_without_samples(
    state: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = TraceBuilder().launch("a", 10, stack=UP).row("PYREC_META", name="format", value="1")
    if state:
        builder.row("PYREC_META", name="counters_state", value=state)
    assert main(["counters", str(builder.write(tmp_path / "run.sqlite"))]) == 3
    error = capsys.readouterr().err
    assert "holds no sampled hardware counters" in error and words in error


def test_too_few_samples_tell_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["counters", str(with_samples(tmp_path, 100))]) == 3
    assert "100 samples of hardware counters, and it takes 240" in capsys.readouterr().err


def test_an_empty_file_and_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.sqlite").touch()
    assert main(["counters", str(tmp_path / "empty.sqlite")]) == 4
    assert main(["counters", str(tmp_path / "none.sqlite")]) == 4
    assert "none.sqlite" in capsys.readouterr().err
