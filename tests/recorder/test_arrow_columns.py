# SPDX-License-Identifier: Apache-2.0
"""The columns of a recording are those that pyarrow.array makes, without the pandas that it imports."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from package_root import PACKAGE_ROOT

from profiling_lab.recording.tables import arrow_columns
from profiling_lab.recording.tables.arrow_columns import numbers, of_list


@pytest.mark.parametrize("kind", ["int64", "uint64", "int32", "float64", "uint8", "bool"])
@pytest.mark.parametrize("rows", [0, 1, 8, 21])
def test_numbers(kind: str, rows: int) -> None:
    values = np.arange(2 * rows)[::2].astype(kind)  # not contiguous
    mask = np.arange(rows) % 3 == 1
    assert numbers(values).equals(pa.array(values))
    assert numbers(values, mask).equals(pa.array(values, mask=mask))
    assert numbers(np.ma.masked_array(values, mask=mask)).equals(pa.array(values, mask=mask))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([], pa.string()),
        (["a", None, "", "äöü", "\0x"], pa.string()),
        ([None, None], pa.string()),
        ([b"\xff\x00", None, b""], pa.binary()),
        ([1, None, 0, -(2**63), 2**63 - 1], pa.int64()),
        ([], pa.int64()),
    ],
)
def test_lists(values: list[Any], kind: Any) -> None:
    assert of_list(values, kind).equals(pa.array(values, kind))
    of_list(values, kind).validate(full=True)


def test_texts_of_more_bytes_than_a_column_holds_come_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_columns, "_MOST_BYTES", 3)
    assert of_list(["ab", "cd"], pa.string()).to_pylist() == ["ab", "cd"]


@pytest.mark.skipif(find_spec("pandas") is None, reason="pandas is not installed")
def test_the_end_of_a_recording_imports_no_pandas(tmp_path: Path) -> None:
    code = """
import sys, profiling_lab.recording as recording, os
folder = sys.argv[1]
recorder = recording.Recorder(os.path.join(folder, "out.sqlite"))
recorder.start()
recorder.stop()
assert os.path.isfile(os.path.join(folder, "out.sqlite"))
assert "pyarrow" in sys.modules and "pandas" not in sys.modules
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=PACKAGE_ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
