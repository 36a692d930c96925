# SPDX-License-Identifier: Apache-2.0
"""A reduced recording says the same about GPU time and nothing about the machine it came from."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from pathlib import Path
from types import ModuleType

import pytest
from builders import TraceBuilder
from conftest import REPO
from exercises.training_trace import FOLDER, training_trace

from profiling_lab.analysis.lines import lines
from profiling_lab.analysis.lines_host import host_lines
from profiling_lab.report import bottleneck
from profiling_lab.trace import Trace


@pytest.fixture(scope="module")
def reduce_trace() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reduce_trace", REPO / "benchmarks" / "reduce_trace.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def facts(path: Path) -> tuple[object, ...]:
    """Everything the demo says, without the folders that a reduction cuts off."""
    with Trace.open(path) as trace:
        found = bottleneck.find(trace, sources=FOLDER)
    rows = [
        (Path(r.file).name, r.line, r.function, r.forward_ns, r.backward_ns, r.kernels) for r in found.lines
    ]
    tree = bottleneck.kernel_tree(found, limit=100)
    return rows, tree, bottleneck.conclusion(found), found.coverage


def texts(path: Path) -> str:
    """All text of a file, one string."""
    with sqlite3.connect(path) as file:
        return "\n".join(file.iterdump())


@pytest.mark.parametrize("form", ["recorder", "nsys"])
def test_nothing_that_matters_is_lost(reduce_trace: ModuleType, tmp_path: Path, form: str) -> None:
    source = training_trace(tmp_path / "full.sqlite", form=form)
    before = source.read_bytes()
    size = reduce_trace.reduce(source, tmp_path / "small.sqlite", ("/home/learner",))
    assert source.read_bytes() == before
    assert size == (tmp_path / "small.sqlite").stat().st_size
    assert facts(tmp_path / "small.sqlite") == facts(source)
    assert "/home/learner" in texts(source) and "/home/learner" not in texts(tmp_path / "small.sqlite")


def test_a_real_nsys_export_stays_readable_and_loses_its_owner(
    reduce_trace: ModuleType, captures: Path, tmp_path: Path
) -> None:
    source, small = captures / "python_backtrace_h200.sqlite", tmp_path / "small.sqlite"
    assert reduce_trace.reduce(source, small, ("/app",)) < 250_000 < source.stat().st_size / 2
    assert facts(small) == facts(source)
    dump = texts(small)
    for gone in (
        "TABLE CUDA_CALLCHAINS",
        "SAMPLING_CALLCHAINS",
        "SCHED_EVENTS",
        "META_DATA_CAPTURE",
        "libtorch",
        "/venv/",
        "/app/",
    ):
        assert gone in texts(source) and gone not in dump, gone


def test_the_text_of_lines_can_be_left_out(reduce_trace: ModuleType, tmp_path: Path) -> None:
    source = training_trace(tmp_path / "full.sqlite")
    with sqlite3.connect(source) as file:
        (number,) = file.execute("SELECT id FROM StringIds WHERE value LIKE '%/model.py'").fetchone()
        file.execute("CREATE TABLE IF NOT EXISTS PYREC_SOURCE (fileId INTEGER, line INTEGER, text TEXT)")
        file.execute("INSERT INTO PYREC_SOURCE (fileId, line, text) VALUES (?, 1, 'secret()')", (number,))
    for text in (True, False):
        small = tmp_path / f"{text}.sqlite"
        reduce_trace.reduce(source, small, ("/home/learner",), text=text)
        assert ("secret()" in texts(small)) is text
        assert facts(small) == facts(source)


def test_the_program_can_get_another_name(reduce_trace: ModuleType, tmp_path: Path) -> None:
    source, small = training_trace(tmp_path / "full.sqlite"), tmp_path / "small.sqlite"
    with sqlite3.connect(source) as file:
        file.execute("CREATE TABLE IF NOT EXISTS PYREC_META (name TEXT, value TEXT)")
        file.execute("INSERT INTO PYREC_META VALUES ('script', 'train_model.py')")
    reduce_trace.reduce(source, small, ("/home/learner",), called="train.py")
    assert "train_model.py" in texts(source)
    assert "train_model.py" not in texts(small) and "'script','train.py'" in texts(small)


def test_paths_keep_what_says_whose_code_it_is(reduce_trace: ModuleType, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "names.sqlite") as file:
        file.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        names = [
            (
                "/home/me/venv/lib/python3.12/site-packages/torch/nn/functional.py",
                "/site-packages/torch/nn/functional.py",
            ),
            ("/opt/py/lib/python3.12/contextlib.py", "/lib/python3.12/contextlib.py"),
            (
                "/home/me/checkout/profiling_lab/ops/heavy_layer.py",
                "/site-packages/profiling_lab/ops/heavy_layer.py",
            ),
            ("/tmp/profiling-lab-demo-x1y2/model.py", "model.py"),
            ("/home/me/work/train.py", "train.py"),
            ("<frozen runpy>", "<frozen runpy>"),
        ]
        file.executemany("INSERT INTO StringIds (value) VALUES (?)", [(name,) for name, _ in names])
        reduce_trace.shorten_paths(file, ("/home/me/work",))
        found = [value for (value,) in file.execute("SELECT value FROM StringIds ORDER BY id")]
    assert found == [short for _, short in names]


def test_only_what_kept_calls_need_stays_and_the_file_gets_another_name(
    reduce_trace: ModuleType, tmp_path: Path
) -> None:
    """Stacks of calls that launched nothing go, and source lines of libraries; the program's own stay."""
    builder = TraceBuilder()
    builder.launch("gemm", 1000, stack="/home/learner/slow_program.py:8 main")
    builder.call("cudaGetDevice_v3020", stack="/home/learner/slow_program.py:9 unused_function")
    for file, text in (("/home/learner/slow_program.py", "y = x @ w"), ("/usr/lib/other.py", "not ours")):
        builder.row("PYREC_SOURCE", fileId=builder.string(file), line=8, text=text)
    source = builder.write(tmp_path / "full.sqlite")
    small = tmp_path / "small.sqlite"
    reduce_trace.reduce(source, small, ("/home/learner",), "train.py")
    dump = texts(small)
    for gone in ("slow_program", "unused_function", "not ours"):
        assert gone in texts(source) and gone not in dump, gone
    with sqlite3.connect(small) as file:
        assert file.execute("SELECT count(*) FROM PYREC_LAUNCH").fetchone() == (1,)
    with Trace.open(small) as trace:
        (row,) = lines(trace).rows
    assert (row.file, row.line, row.function) == ("train.py", 8, "main") and "y = x @ w" in dump


def test_deep_samples_keep_the_frames_of_the_program(reduce_trace: ModuleType, tmp_path: Path) -> None:
    """Imports at the start are more than a hundred frames deep, and would be most of the file."""
    source = TraceBuilder().launch("gemm", 1000, stack="train.py:3 main")
    for number in range(5):
        folder = "/env/lib/python3.12/site-packages/torch"
        imports = " > ".join(f"{folder}/m{i}.py:{1 + number * (i == 199)} <module>" for i in range(200))
        source.sample(source.now_ns + 1000 * number, f"train.py:3 main > train.py:7 build > {imports}")
    full, small = source.write(tmp_path / "full.sqlite"), tmp_path / "small.sqlite"
    reduce_trace.reduce(full, small, samples=True)
    hosts = []
    for path in (full, small):
        with Trace.open(path) as trace:
            hosts.append([(row.line, row.function, row.samples) for row in host_lines(trace).rows])
    assert hosts[0] == hosts[1] and hosts[0][0][2] == 5
    with sqlite3.connect(small) as file:
        stacks = file.execute("SELECT value FROM StringIds WHERE value LIKE '%Periodic Sampling%'").fetchall()
    file.close()
    (payload,) = (json.loads(text)["Python Periodic Sampling"] for (text,) in stacks)
    assert len(payload["Frames"]) == payload["Frames count"] == 32
