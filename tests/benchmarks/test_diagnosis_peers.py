# SPDX-License-Identifier: Apache-2.0
"""What the diagnosis benchmark makes of the words of other tools: causes, lines and alarms."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from builders import TraceBuilder
from conftest import REPO
from package_root import PACKAGE_ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = REPO / "benchmarks" / "diagnosis"
TRUTH = tomllib.loads((FOLDER / "truth.toml").read_text())
WORDS = tomllib.loads((FOLDER / "peers.toml").read_text())


@pytest.fixture
def peers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("diagnosis_peers", FOLDER / "peers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_words_mean_causes_of_the_truth(peers: ModuleType) -> None:
    known = {cause for truth in TRUTH.values() for cause in truth["causes"]}
    assert set(WORDS) == {tool.split()[0] for tool in peers.TOOLS}
    for rows in WORDS.values():
        for row in rows:
            assert set(row) == {"says", "means"} and row["means"], row
            assert set(row["means"]) <= known, row
            re.compile(row["says"])


@pytest.mark.parametrize(
    ("tool", "headline", "cause"),
    [
        ("nsys-ai root_cause_matcher", "GPU Bubbles: Kernel launch overhead dominates gaps.", "tiny_kernels"),
        ("nsys-ai root_cause_matcher", "Pageable Memory in Async Memcpy: Use pinned memory", "pageable_copy"),
        ("nsys-ai diagnose", "GPU Idle Summary (93.3% of profile): Total: 380.4ms idle", "host_work"),
        ("nsys analyze", "cuda_api_sync", "sync_calls"),
        ("hta", "idle: kernel_wait", "tiny_kernels"),
        ("TraceLens", "timeline: idle_time", "host_work"),
        ("TraceLens", "op: aten::mm ['double', 'double']", "double_precision"),
    ],
)
def test_the_first_row_that_fits_decides(peers: ModuleType, tool: str, headline: str, cause: str) -> None:
    assert cause in peers.meaning(tool, headline)
    assert "garbage_collection" not in peers.meaning(tool, "Small Kernel Overhead")
    assert peers.meaning(tool, "a sentence about nothing") == []


def test_an_answer_is_judged_by_cause_line_and_alarm(peers: ModuleType) -> None:
    name, tool = "unique_per_field", "nsys-ai root_cause_matcher"
    source = (FOLDER / "programs" / f"{name}.py").read_text().splitlines()
    planted = next(n for n, text in enumerate(source, 1) if text.strip() == TRUTH[name]["lines"][0])

    def judged(headline: str) -> tuple[bool | None, ...]:
        answer = peers.Answer((headline,), None)
        return peers.judged(tool, answer, name, TRUTH[name])

    said = "Excessive Synchronization"
    assert judged(said) == (True, False, None)
    assert judged(f"{said} at /a/{name}.py:{planted}") == (True, True, None)
    assert judged(f"{said} at /a/{name}.py:1") == (True, False, None)
    assert judged(f"Garbage at other.py:{planted}") == (False, False, None)
    function = max(n for n, text in enumerate(source[:planted], 1) if text.strip().startswith("def "))
    assert judged(f"{said} in {name}.py({function}): forward") == (True, True, None)
    assert peers.judged(tool, None, name, TRUTH[name]) == (False, False, None), "it gave up"
    for alarm in (True, False, None):
        answer = peers.Answer(("GPU Bubbles",), alarm)
        assert peers.judged(tool, answer, "healthy_mlp", TRUTH["healthy_mlp"]) == (None, None, alarm)


def test_the_steady_window_is_the_second_half_of_the_gpu_work(peers: ModuleType, tmp_path: Path) -> None:
    builder = TraceBuilder()
    for _ in range(4):
        builder.launch("k", 1_000_000).gap(1_000_000)
    recording = builder.write(tmp_path / "a.sqlite")
    with sqlite3.connect(recording) as file:
        rows = file.execute('select start, "end" from CUPTI_ACTIVITY_KIND_KERNEL order by 1').fetchall()
    begin, end = peers.steady_ns(recording)
    assert end == rows[-1][1] and [start >= begin for start, _ in rows] == [False, False, True, True]
    trace = tmp_path / "a.json.gz"
    events = [{"ph": "X", "cat": "kernel", "name": "k", "ts": 10 * n, "dur": 5} for n in range(4)]
    events += [{"ph": "M", "name": "process_name"}, {"ph": "X", "cat": "cpu_op", "ts": 0, "dur": 99}]
    trace.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    kept = json.loads(gzip.decompress(peers.of_window(trace, "steady", scratch).read_bytes()))["traceEvents"]
    assert kept == events[2:], "what ended before the middle, 17.5, is gone"
    whole = json.loads(gzip.decompress(peers.of_window(trace, "whole", scratch).read_bytes()))
    assert whole["traceEvents"] == events


@pytest.mark.parametrize(("window", "asked"), [([], ["whole", "steady"]), (["--window", "whole"], ["whole"])])
def test_a_program_is_read_in_the_windows_that_were_asked_for(
    peers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: list[str], asked: list[str]
) -> None:
    (tmp_path / "healthy_mlp.sqlite").touch()
    seen = []
    tool = (".sqlite", ("whole", "steady"), lambda recording, window, scratch: seen.append(window))
    monkeypatch.setattr(peers, "TOOLS", {"hta": tool})
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setattr(sys, "argv", ["peers.py", str(tmp_path), "--bin", str(tmp_path), *window])
    assert peers.main() == 0 and seen == asked


def test_a_folder_without_recordings_is_one_sentence_a_tool(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "peers.py"), str(tmp_path), "--bin", str(tmp_path), "--tools", "hta"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
    )
    assert done.returncode == 2 and done.stderr == f"hta: {tmp_path} holds no NAME.json.gz of run.py\n"


ANALYZED = """
Processing [run.sqlite] with [/opt/nsys/rules/cuda_memcpy_async.py]...

 ** CUDA Async Memcpy with Pageable Memory (cuda_memcpy_async):

There were no problems detected related to memcpy operations using pageable memory.

Processing [run.sqlite] with [/opt/nsys/rules/cuda_api_sync.py]...

 ** CUDA Synchronization APIs (cuda_api_sync):

The following are synchronization APIs that block the host until all issued
CUDA calls are complete.

 Duration (ns)  Start (ns)  PID   TID        API Name
 -------------  ----------  ---  ----  ---------------------
    10,533,835  59,496,940  600   600  cudaStreamSynchronize
"""


@pytest.mark.parametrize(("text", "found"), [(ANALYZED, ("cuda_api_sync",)), (ANALYZED[:300], ())])
def test_rules_of_nsys_that_list_something(
    peers: ModuleType, tmp_path: Path, text: str, found: tuple[str, ...]
) -> None:
    recording = tmp_path / "run.sqlite"
    recording.with_suffix(".analyze.txt").write_text(text)
    assert peers.nsys_analyze(recording, "whole", tmp_path) == peers.Answer(found, bool(found))


def test_a_tool_that_gave_up_raised_no_alarm_and_was_not_quiet(peers: ModuleType) -> None:
    assert peers.judged("hta", None, "healthy_mlp", TRUTH["healthy_mlp"]) == (None, None, None)
