# SPDX-License-Identifier: Apache-2.0
"""The tables of kernels, ranges and samples of a report page are those of the verbs."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from builders import TraceBuilder
from report.page_reader import PageReader

from profiling_lab.cli import main
from profiling_lab.report.html import build_page
from profiling_lab.trace import Trace

RECORDED = Path(str(files("profiling_lab.exercises.e17_python_backtrace"))) / "recorded"


@pytest.fixture(scope="module", params=["demo_h200.sqlite", "nsys_h200.sqlite"])
def recorded(request: pytest.FixtureRequest) -> tuple[Path, PageReader]:
    path = RECORDED / request.param
    with Trace.open(path) as trace:
        return path, PageReader(build_page(trace).html)


def verb(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main([*arguments, "--format", "json", "--limit", "0"])
    envelope: dict[str, Any] = json.loads(capsys.readouterr().out)
    return envelope


@pytest.mark.parametrize(("section", "command"), [("kernels", "kernels"), ("ranges", "ranges")])
def test_shown_columns_are_those_of_the_verbs(
    recorded: tuple[Path, PageReader], capsys: pytest.CaptureFixture[str], section: str, command: str
) -> None:
    path, page = recorded
    table = page.data[section]
    if "absent" in table:
        assert section == "ranges" and "holds no range" in table["absent"]
        return
    rows = verb(capsys, command, str(path))["data"]["rows"]
    assert len(table["rows"]) == len(rows) == table["total_matched"] > 3
    named = [column["name"] for column in table["columns"]]
    for name in {"total_ns", "count", "projected_total_ns", "busy_ns", "host_total_ns"} & {*named}:
        at = named.index(name)
        # A range that launched nothing has no time on the GPU: the page shows that as unknown.
        assert [row[at] or 0 for row in table["rows"]] == [row[name] for row in rows], name
    assert [row["name"] for row in table["data"]] == [row["name"] for row in rows]


def test_samples_have_their_table_and_their_stacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = TraceBuilder().launch("gemm", 5000, stack="train.py:5 main")
    for moment in range(12):
        builder.sample(900_000 + moment * 50_000, f"train.py:5 main > data.py:{2 + moment % 3} load")
    path = builder.write(tmp_path / "run.sqlite")
    with Trace.open(path) as trace:
        page = PageReader(build_page(trace).html)
    main(["lines", "--host", str(path), "--format", "json", "--limit", "0"])
    rows = json.loads(capsys.readouterr().out)["data"]["rows"]
    named = [column["name"] for column in page.data["host"]["columns"]]
    for name in ("host_ns", "samples"):
        assert [row[named.index(name)] for row in page.data["host"]["rows"]] == [row[name] for row in rows]
    (self_ns,) = page.head["host_stacks"]["self_ns"].values()
    assert int(page.column(self_ns).sum()) == sum(row["host_ns"] for row in rows) == 12 * 50_000
    (lane,) = page.of_kind("samples")
    assert lane.more["samples"].sum() == 12, "also of those before the first CUDA call"
