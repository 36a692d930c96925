# SPDX-License-Identifier: Apache-2.0
"""profiling_lab.open, and what the package shows of itself."""

from __future__ import annotations

import builtins
import importlib.metadata
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from package_root import PACKAGE_ROOT

import profiling_lab
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.recording import Recorder
from profiling_lab.trace import Trace

RECORDED = Path(profiling_lab.__file__).parent / "exercises" / "e17_python_backtrace" / "recorded"
DEMO = RECORDED / "demo_h200.sqlite"


def test_it_says_what_it_is_of() -> None:
    with profiling_lab.open(str(DEMO)) as trace:
        assert repr(trace) == f"<TraceTables of {DEMO}>"
        assert (
            repr(trace.window(step=2))
            == f"<TraceTables of {DEMO}, step 2 of 0 to 3 (the program's training_step #3)>"
        )
        assert isinstance(trace.trace, Trace) and len(trace.trace.operations) == 1086


def test_paths_of_ones_own_code() -> None:
    for own in ("model.py", Path("model.py"), ["model.py"], [Path("model.py")]):
        with profiling_lab.open(DEMO, own=own) as trace:
            assert set(trace.lines()["file"]) == {"model.py"}
            assert trace.window(step=0).own == ("model.py",)


@pytest.mark.parametrize(
    ("part", "error", "sentence"),
    [
        ({"step": 4}, UsageError, "--step 4: the trace has 4 steps, 0 to 3"),
        ({"range": "1s"}, UsageError, "--range expects two times"),
        ({"nvtx": "no such"}, NotEnoughDataError, "no range named 'no such'"),
        ({"rank": [7]}, UsageError, "rank"),
        ({"device": 5}, UsageError, "device"),
    ],
)
def test_a_part_that_there_is_not(
    part: dict[str, object], error: type[Exception], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Trace] = []
    monkeypatch.setattr(Trace, "close", lambda trace: closed.append(trace))
    with pytest.raises(error, match=sentence):
        profiling_lab.open(DEMO, **part)  # type: ignore[arg-type]
    assert len(closed) == 1


def test_wrong_arguments() -> None:
    with profiling_lab.open(DEMO) as trace:
        for call, sentence in (
            (lambda: trace.lines(by="lien"), "by must be one of line, function, .*, not 'lien'"),
            (lambda: trace.kernels("nam"), "by must be one of name, .*, not 'nam'"),
            (lambda: trace.gaps("causes"), "by must be one of cause, gap, not 'causes'"),
            (lambda: trace.overlap("classes"), "by must be one of class, stream, pair, not 'classes'"),
            (lambda: trace.copies("lines"), "by must be one of"),
            (lambda: trace.copies(peak=0), "peak must be in GB/s, such as 55, not 0"),
            (lambda: trace.check("bond"), "there is no rule 'bond'"),
            (lambda: trace.check(set={"bound.x": 1}), "rule bound has no threshold 'x'"),
            *((getattr(trace, name), "limit must be at least 0, not -1") for name in (
                "lines", "call_tree", "host_lines", "kernels", "apis", "launches", "copies", "syncs",
                "ranges", "streams", "steps", "gaps", "overlap", "check",
            )),
        ):  # fmt: skip
            more = {"limit": -1} if "limit" in sentence else {}
            with pytest.raises(UsageError, match=sentence):
                call(**more)  # type: ignore[operator]
        assert len(trace.overlap(limit=0)) == len(trace.overlap()) > 0
    for call, sentence in (
        (lambda: profiling_lab.diff(DEMO, DEMO, by="lines"), "by must be one of line"),  # type: ignore[arg-type]
        (lambda: profiling_lab.diff([], DEMO), "at least one recording from before"),
        (lambda: profiling_lab.diff(DEMO, DEMO, limit=-2), "limit must be at least 0, not -2"),
        (lambda: profiling_lab.ranks(DEMO, by="ranks"), "by must be one of rank"),  # type: ignore[arg-type]
        (lambda: profiling_lab.ranks(DEMO, jobs=0), "jobs must be at least 1, not 0"),
    ):
        with pytest.raises(UsageError, match=sentence):
            call()


def test_names_to_complete() -> None:
    program = "import sys, profiling_lab; print(*dir(profiling_lab)); print('numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(PACKAGE_ROOT)},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    names, loaded = done.stdout.splitlines()
    public = [name for name in names.split() if not name.startswith("_")]
    assert public == sorted({*profiling_lab.__all__, "open"} - {"__version__"}), "lazy names, and no helper"
    assert "__version__" in names.split() and loaded == "False", "listing loads nothing"
    for name in public:
        assert getattr(profiling_lab, name) is not None


def test_a_star_import_keeps_pythons_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0")  # also where it is not installed
    names: dict[str, object] = {}
    exec("from profiling_lab import *", names)
    assert names.get("open", builtins.open) is builtins.open and names["diff"] is profiling_lab.diff


def test_record_shows_its_options() -> None:
    ours, theirs = inspect.signature(profiling_lab.record), inspect.signature(Recorder)
    assert ours.parameters == theirs.parameters and "sample_hz" in ours.parameters
    with pytest.raises(TypeError, match="sampel_hz"):
        profiling_lab.record("unused.sqlite", sampel_hz=3).__enter__()  # type: ignore[call-arg]
    assert not Path("unused.sqlite").exists()
