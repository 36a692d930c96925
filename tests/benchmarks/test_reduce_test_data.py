# SPDX-License-Identifier: Apache-2.0
"""tools/reduce_test_data.py keeps what tests look at, and tests/data/captures says where it came from."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sqlite3
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import CAPTURES, REPO

EVENTS = """{
  "schemaVersion": 1,
  "traceEvents": [
  {
    "ph": "X", "cat": "Operator", 
    "name": "aten::add", "pid": 1, "tid": "1", "ts": 10, "dur": 25,
    "args": {
      "External id": 2, "Trace name": "PyTorch Profiler", "Trace iteration": 0 ,
      "Input Dims": [[1], []], "Call stack": "/home/me/conda/lib/python3.7/site-packages/torch/a.py(6): f;\
/home/me/conda/lib/python3.7/contextlib.py(7): g;/home/me/train.py(54): <module>", "Input type": ["float", ""]
    }
  },
%s  {
    "ph": "X", "cat": "Kernel", 
    "name": "gemm", "pid": 0, "tid": "stream 7", "ts": 31, "dur": 2,
    "args": {
      "correlation": 3, "external id": 2, "external ts": 10,
      "shared memory": 0,
      "blocks per SM": 0.625,
      "warps per SM": 5.0,
      "grid": [50, 1, 1]
    }
  }
]}"""
MEMORY = '  {\n    "ph": "i", "name": "[memory]", "ts": %d, "args": {\n      "Bytes": 4\n    }\n  },\n'


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = REPO / "tools" / "reduce_test_data.py"
    spec = importlib.util.spec_from_file_location("reduce_test_data", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_trace_of_torch_keeps_its_events_and_its_layout(script: ModuleType) -> None:
    text = EVENTS % "".join(MEMORY % ts for ts in range(100))
    small = script.reduce_torch(gzip.compress(text.encode())).decode()
    assert set(small.splitlines()) - set(text.splitlines()) == {
        '      "External id": 2, "Trace iteration": 0 ,',
        '      "Input Dims": [[1], []], "Call stack": "/site-packages/torch/a.py(6): f;'
        '/lib/python3.7/contextlib.py(7): g;/home/me/train.py(54): <module>"',
        '      "correlation": 3, "external id": 2,',
    }
    events: list[dict[str, Any]] = json.loads(small)["traceEvents"]
    assert [event["ts"] for event in events] == [10, 0, 20, 40, 60, 80, 31]
    assert events[-1]["args"] == {"correlation": 3, "external id": 2, "shared memory": 0, "grid": [50, 1, 1]}


def test_an_export_of_nsys_loses_only_what_is_outside_of_its_calls(
    script: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "capture.sqlite"
    with sqlite3.connect(path) as file:
        file.executescript("""
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid);
            CREATE TABLE COMPOSITE_EVENTS (id, start, globalTid);
            CREATE TABLE SAMPLING_CALLCHAINS (id, symbol);
            CREATE TABLE SCHED_EVENTS (start, globalTid);
            CREATE TABLE TARGET_INFO_GPU (name, uuid, busLocation);
            INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (100, 110, 1), (190, 200, 1);
            INSERT INTO COMPOSITE_EVENTS VALUES (1, 99, 1), (2, 100, 1), (3, 200, 2), (4, 201, 1);
            INSERT INTO SAMPLING_CALLCHAINS VALUES (1, 7), (2, 7), (2, 8), (3, 9), (4, 7);
            INSERT INTO SCHED_EVENTS VALUES (50, 1), (150, 1), (150, 2), (150, 3), (250, 1);
            INSERT INTO TARGET_INFO_GPU VALUES ('NVIDIA H200', '22e0-1df0', '0000:00:06.0');
        """)
    file.close()
    (tmp_path / "small.sqlite").write_bytes(script.reduce_nsys(path.read_bytes()))
    with sqlite3.connect(tmp_path / "small.sqlite") as file:
        found = {
            table: file.execute(f"SELECT * FROM {table}").fetchall()
            for (table,) in file.execute("SELECT name FROM sqlite_master").fetchall()
        }
    file.close()
    assert found == {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [(100, 110, 1), (190, 200, 1)],
        "COMPOSITE_EVENTS": [(2, 100, 1), (3, 200, 2)],
        "SAMPLING_CALLCHAINS": [(2, 7), (2, 8), (3, 9)],
        "SCHED_EVENTS": [(150, 1), (150, 2)],
        "TARGET_INFO_GPU": [("NVIDIA H200", None, None)],
    }


def test_each_capture_is_small_has_a_source_and_names_no_person(script: ModuleType, captures: Path) -> None:
    readme = (CAPTURES / "README.md").read_text()
    packed = {path.name for path in CAPTURES.glob("*.gz")}
    assert {name if ".json" in name else f"{name}.gz" for name in script.SHA256.split()[1::2]} == packed
    assert all(f"| `{name}`" in readme or f", `{name}`" in readme for name in packed)
    assert sum(path.stat().st_size for path in CAPTURES.iterdir()) < 3_000_000
    for path in captures.iterdir():
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        assert b"/home/" not in content and b"/root/" not in content, path.name
