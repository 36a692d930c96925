# SPDX-License-Identifier: Apache-2.0
"""profiling-lab info"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.cli import main


def test_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = TraceBuilder(form="nsys").launch("gemm", 1000, stack="a.py:1 f").write(tmp_path / "run.sqlite")
    assert main(["info", str(path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "schema 3.25.0" in out and "GPU        unknown, the file does not say" in out
    assert "run.sqlite: 1.000 µs of GPU time in 1 operation" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["Python", "stacks", "of", "API", "calls", "1"] in rows
    assert "--pytorch=autograd-nvtx" in out


def test_json_has_rows_and_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = TraceBuilder().launch("gemm", 1000, stack="a.py:1 f").write(tmp_path / "run.sqlite")
    assert main(["info", str(path), "--format", "json"]) == 0
    envelope = json.loads(capsys.readouterr().out)
    rows = {row["key"]: row["rows"] for row in envelope["data"]["rows"]}
    assert rows["kernels"] == 1 and rows["copies"] == 0
    assert envelope["trace"]["schema"] == "3.25.0"
    assert envelope["trace"]["recorder"] == {"recorder_version": "test"}
    assert envelope["coverage"]["attributed_ns"] == 1000


def test_a_trace_without_gpu_work_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = TraceBuilder().call("cudaMalloc").write(tmp_path / "run.sqlite")
    assert main(["info", str(path)]) == 0
    assert "nothing ran on the GPU while it was recorded" in capsys.readouterr().out


def test_a_trace_that_lost_its_gpu_events_is_described_and_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.json"
    call = '{"ph": "X", "cat": "cuda_runtime", "name": "cudaMalloc", "pid": 1, "tid": 1, "ts": 1, "dur": 2}'
    path.write_text(f'{{"traceEvents": [{call}, {call}, {call[:30]}')
    assert main(["info", str(path)]) == 4
    out = capsys.readouterr().out
    assert "warning: the file is truncated after" in out and "and 2 events" in out
    assert "ProfilerActivity.CUDA was not" not in out
