# SPDX-License-Identifier: Apache-2.0
"""A reduced recording says the same about GPU time and nothing about the machine it came from."""

from __future__ import annotations

import importlib.util
import sqlite3
from pathlib import Path
from types import ModuleType

import pytest
from conftest import REPO
from exercises.training_trace import FOLDER, training_trace

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
