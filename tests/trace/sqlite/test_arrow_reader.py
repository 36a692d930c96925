# SPDX-License-Identifier: Apache-2.0
"""Columns of an Arrow stream, read without pyarrow; here pyarrow makes the streams."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from builders import TraceBuilder

from profiling_lab import _analysis


def stream_of(*batches: pa.RecordBatch) -> _analysis.ArrowStream:
    return _analysis.ArrowStream(pa.RecordBatchReader.from_batches(batches[0].schema, batches))


def batch_of(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])


def test_integers_are_views_that_outlive_their_batch() -> None:
    found = [batch.integers(0) for batch in stream_of(*(batch_of(a=pa.array([n, -n])) for n in (1, 2)))]
    gc.collect()
    assert [values.tolist() for values in found if values is not None] == [[1, -1], [2, -2]]
    assert found[0] is not None and found[0].dtype == np.int64 and not found[0].flags.owndata


@pytest.mark.parametrize("column", [pa.array([1, None]), pa.array([1.5]), pa.array([b"1"]), pa.nulls(2)])
def test_other_columns_are_no_integers(column: pa.Array) -> None:
    (batch,) = stream_of(batch_of(a=column))
    assert batch.integers(0) is None


def test_a_slice_begins_where_it_says() -> None:
    whole = batch_of(a=pa.array([None, 2, 3, 4]), b=pa.array([b"x", b"", b"\xff\xfe", b"last"]))
    (batch,) = stream_of(whole.slice(1, 2))
    values, texts = batch.integers(0), batch.texts(1)
    assert values is not None and values.tolist() == [2, 3], "the NULL is outside of the slice"
    assert texts is not None
    offsets, data = texts
    assert [bytes(data[a:b]) for a, b in itertools.pairwise(offsets)] == [b"", b"\xff\xfe"]
    assert (batch.values(0), batch.values(1)) == ([2, 3], [b"", b"\xff\xfe"])


def test_values_of_each_type_and_nulls() -> None:
    columns = {
        "a": pa.array([2**62, None]),
        "b": pa.array([0.5, None]),
        "c": pa.array(["µ", None]),
        "d": pa.array([b"\xff", None]),
        "e": pa.nulls(2),
    }
    (batch,) = stream_of(batch_of(**columns))
    assert batch.width == 5
    found = [batch.values(column) for column in range(5)]
    assert found == [[2**62, None], [0.5, None], ["µ".encode(), None], [b"\xff", None], [None, None]]
    assert batch.texts(3) is None and batch.texts(2) is None, "a NULL; a text that is no BLOB"


def test_no_rows_and_no_batches() -> None:
    (batch,) = stream_of(batch_of(a=pa.array([], pa.int64()), b=pa.array([], pa.binary())))
    values, texts = batch.integers(0), batch.texts(1)
    assert values is not None and len(values) == 0
    assert texts is not None and (len(texts[0]), len(texts[1])) == (1, 0)
    empty = pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), [])
    assert list(_analysis.ArrowStream(empty)) == []


def test_what_is_wrong_is_said() -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield batch_of(a=pa.array([1]))
        raise ValueError("the disk is gone")

    batches = _analysis.ArrowStream(
        pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), failing())
    )
    first = next(batches)
    with pytest.raises(RuntimeError, match="the disk is gone"):
        next(batches)
    with pytest.raises(IndexError, match="no column 1"):
        first.integers(1)
    (other,) = stream_of(batch_of(a=pa.array([True])))
    with pytest.raises(RuntimeError, match="has the type 'b'"):
        other.values(0)
    with pytest.raises(AttributeError, match="__arrow_c_stream__"):
        _analysis.ArrowStream([1, 2])


def test_a_table_of_a_recording_needs_no_pyarrow(tmp_path: Path) -> None:
    """Its import takes as long as reading a small trace."""
    path = TraceBuilder().launch("k", 1_000, stack="/app/train.py:3 step").write(tmp_path / "run.sqlite")
    program = (
        "import sys; from profiling_lab.cli import main\n"
        "status = main(['lines', sys.argv[1]])\n"
        "print(status, [name for name in sys.modules if name.startswith('pyarrow')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path], cwd=tmp_path, capture_output=True, text=True, check=False
    )  # the source tree has no compiled modules where the package is installed
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr
