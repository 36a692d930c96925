# SPDX-License-Identifier: Apache-2.0
"""The errors that docs/roofline.md and `roofline` state are those of the recorded results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from generated_page import assert_current

from profiling_lab.analysis.roofline.model_error import errors
from profiling_lab.work.kinds import KINDS

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(REPO / "tools"))
    import roofline_error

    return roofline_error


def test_page_and_errors_are_current(tmp_path: Path) -> None:
    assert_current("roofline_error.py", tmp_path)


def test_every_measured_kind_is_one_of_the_models() -> None:
    assert set(errors()) <= set(KINDS)


def line(kind: str, provider: str, metric: str, value: float, op: str = "x") -> dict[str, Any]:
    case = {"kind": kind, "op": op, "shape": "8", "dtype": "bfloat16"}
    return {"case": case, "provider": provider, "metric": metric, "value": value, "gpu": "H200",
            "driver": "1", "torch": "2", "date": "2026-11-23T00:00:00Z", "git": "abc"}  # fmt: skip


def both(kind: str, op: str, read: float, flops: float | None = None) -> list[dict[str, Any]]:
    """Measured: 100 bytes read, 100 written, 1000 FLOPs."""
    rows = [line(kind, "modelled", "read_bytes", read, op), line(kind, "modelled", "written_bytes", 100, op)]
    rows += [line(kind, "ncu", "read_bytes", 100, op), line(kind, "ncu", "written_bytes", 100, op)]
    if flops is not None:
        rows += [line(kind, "modelled", "flops", flops, op), line(kind, "ncu", "flops", 1000, op)]
    return rows


def test_the_table_of_errors(tool: Any) -> None:
    lines = both("matmul", "a", 120, 1000) + both("matmul", "b", 100, 990) + both("sort", "c", 20)
    lines += both("sort", "c", 0)  # measured again: the later one counts
    lines += both("model", "gpt", 110, 1000)
    data, page = tool.made(
        lines, "before\n<!-- roofline error -->\nold\n<!-- end of roofline error -->\nafter"
    )
    assert json.loads(data)["kinds"] == {"matmul": [2, 0.05, 0.005], "sort": [1, 0.5, None]}
    assert "| matmul | 2 | 5.0 % | 10 % | 0.5 % |" in page and "| sort | 1 | 50.0 % | 50 % | - |" in page
    assert "Over 20 %: sort." in page and "| gpt, 8 | 1.050 | 1.000 |" in page
    assert page.startswith("before\n") and page.endswith("after") and "old" not in page
