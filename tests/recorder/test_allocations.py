# SPDX-License-Identifier: Apache-2.0
"""`record --memory`, with a model of torch's allocator: the way from torch to the tables of the file."""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import subprocess
import sys
import warnings
import zlib
from array import array
from pathlib import Path
from typing import Any

import pytest
import warm_torch
from package_root import PACKAGE_ROOT

import profiling_lab
from profiling_lab.recording.allocator_snapshot import packed, snapshot_columns
from profiling_lab.recording.merging.merge import merge
from profiling_lab.recording.meta_names import ALLOCATIONS
from profiling_lab.recording.tables.memory import _numbers

pytest.importorskip("torch", reason="torch is not installed")
PROGRAM = Path(__file__).parent / "programs" / "fake_cuda_memory.py"
MIB = 1 << 20


def record(
    folder: Path, *arguments: str, options: tuple[str, ...] = ("--memory",), warm: bool = True
) -> tuple[Path, str, str]:
    """The file, what the program printed, and what `record` said. `warm`: torch is imported already."""
    out = folder / "run.sqlite"
    command = ["-m", "profiling_lab", "record", *options, "--no-samples", "-o", str(out), str(PROGRAM)]
    command += arguments
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    if warm:
        done = warm_torch.run(command, folder, environment)
    else:
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=300,
            env=environment,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout, done.stderr


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path, printed, _ = record(tmp_path_factory.mktemp("memory"), warm=False)
    return path, printed


def test_peak_lines_and_kinds(recorded: tuple[Path, str]) -> None:
    path, printed = recorded
    peak = int(printed.split("peak ")[1].split()[0])
    with profiling_lab.open(path) as trace:
        table = trace.memory()
        (device,) = table.facts["devices"]
        by_kind = dict(device["kinds"])
        lines = {row["line"]: row for row in table.to_dicts()}
    assert sum(table["bytes"]) == device["peak_bytes"] == device["torch_peak_bytes"] == peak
    assert "this is torch's own peak (max_memory_allocated), to the byte" in str(table)
    assert device["total_bytes"] == 80 << 30 and device["is_complete"] and not device["is_cut"]
    assert by_kind["parameters"] == 8 * MIB and by_kind["gradients"] == 8 * MIB
    assert lines[20]["file"] == str(PROGRAM) and lines[20]["kind"] == "parameters"
    assert lines[31]["blocks"] == 4 and lines[30]["bytes"] == 30 * MIB


def test_the_history_begins_with_cuda_and_ends_with_the_recording(recorded: tuple[Path, str]) -> None:
    _, printed = recorded
    assert printed.splitlines()[0] == "history all" and printed.splitlines()[-1] == "history None"


def test_times_are_those_of_the_recording(recorded: tuple[Path, str]) -> None:
    with sqlite3.connect(recorded[0]) as file:
        (first, last) = file.execute("SELECT MIN(start), MAX(start) FROM PYREC_MEMORY_EVENT").fetchone()
        (length,) = file.execute("SELECT stopTime - startTime FROM ANALYSIS_DETAILS").fetchone()
        samples = file.execute("SELECT start, setId FROM PYREC_MEMORY_SAMPLE ORDER BY start").fetchall()
    assert 0 < first < last < length
    assert len(samples) == 4 and len({number for _, number in samples}) < 4, "equal sets are stored once"
    assert first < samples[0][0] < samples[-1][0] <= last


def test_without_the_option_nothing_is_recorded(tmp_path: Path) -> None:
    path, printed, _ = record(tmp_path, options=())
    assert "history" not in printed
    with sqlite3.connect(path) as file:
        names = [name for (name,) in file.execute("SELECT name FROM sqlite_master")]
    assert not [name for name in names if "MEMORY" in name]


def test_a_torch_that_refuses_harms_nothing(tmp_path: Path) -> None:
    path, printed, said = record(tmp_path, "fails")
    assert "peak" in printed
    assert "allocations: this torch cannot record its allocator: RuntimeError: no history here" in said
    with sqlite3.connect(path) as file:
        (state,) = file.execute("SELECT value FROM PYREC_META WHERE name = 'memory_state'").fetchone()
    assert state.endswith("no history here")


def test_merged_files_keep_their_histories(recorded: tuple[Path, str], tmp_path: Path) -> None:
    other, _, _ = record(tmp_path)
    out = tmp_path / "job.sqlite"
    merge([recorded[0], other], out)
    with profiling_lab.open(out) as trace:
        table = trace.memory()
        assert len({device["pid"] for device in table.facts["devices"]}) == 2
        peaks = [device["peak_bytes"] for device in table.facts["devices"]]
        assert peaks[0] == peaks[1] == sum(table["bytes"]) // 2
        assert {row["line"] for row in table.to_dicts()} == {20, 30, 31, None}


def test_no_leaf_is_asked_for_a_gradient() -> None:
    import torch

    from profiling_lab.recording.allocations import GRADIENT, PARAMETER, _Seen

    class OnTheGpu:
        """A tensor of the CPU that says it is on a GPU."""

        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor, self.is_cuda, self.is_leaf = tensor, True, tensor.is_leaf

        @property
        def grad(self) -> Any:
            return None if self.tensor.grad is None else OnTheGpu(self.tensor.grad)

        def data_ptr(self) -> int:
            return self.tensor.data_ptr()

    leaf = torch.ones(1, requires_grad=True)
    product = leaf * 2
    product.sum().backward()
    seen = _Seen()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen.add_parameter(OnTheGpu(product))
        seen.add_parameter(OnTheGpu(leaf))
        seen.add_parameter(None)
    assert seen.kinds.tolist() == [PARAMETER, PARAMETER, GRADIENT]


def test_numbers_survive_packing() -> None:
    numbers = array("q", [0, 1, -1, (1 << 62) + 5])
    assert _numbers(packed(numbers), int).tolist() == list(numbers)  # type: ignore[arg-type]


def test_frames_of_the_recorder_are_outside_of_stacks() -> None:
    from profiling_lab.recording import run_script

    def frame(file: str) -> dict[str, Any]:
        return {"filename": file, "name": "f", "line": 1}

    frames = [frame("/a/model.py"), frame("/a/train.py"), frame(run_script.__file__), frame("/bin/lab")]
    event = {"action": "alloc", "addr": 1, "size": 2, "time_us": 3, "frames": frames}
    columns = snapshot_columns({"segments": [], "device_traces": [[event, {**event, "frames": []}]]})
    assert [file for file, _, _ in columns["frames"]] == ["/a/model.py", "/a/train.py"]
    assert columns["stacks"] == [[], [0, 1]]


@pytest.mark.parametrize("damage", ["[", "{}", '{"devices": [{"events": 1}]}', "bomb"])
def test_a_damaged_history_costs_only_itself(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from profiling_lab.recording.tables.memory import read

    if damage == "bomb":
        monkeypatch.setattr("profiling_lab.recording.tables.memory._MOST_UNPACKED", 1000)
        text = base64.b64encode(zlib.compress(bytes(1008))).decode()
        damage = json.dumps({"devices": [{"events": dict.fromkeys(
            ("action", "address", "size", "time_us", "stack"), text)}]})  # fmt: skip
    spool: Any = SimpleNamespace(meta={ALLOCATIONS: damage}, records={}, strings=[])
    assert read(spool) is None
    assert spool.meta["memory_state"].startswith("the history of the allocator is damaged")
