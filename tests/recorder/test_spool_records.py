# SPDX-License-Identifier: Apache-2.0
"""A field of a record is declared once (csrc/recorder/spool/records.h): from CUPTI's bytes to its column."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorder.spool_blocks import parts

from profiling_lab import _recorder
from profiling_lab.recording.tables.schema import column_names

# Of each format version: the sum over its layout. A capture must be read by what can read it.
LAYOUTS = {4: 0x43A6502E}

# CUPTI's kind; what the converter adds to a field; columns that are made of something else.
KERNEL = (
    10,
    {"launch_type": 1},
    "start greenContextId globalPid demangledName shortName mangledName cacheConfig qmdBulkReleaseDone "
    "qmdPreexitDone qmdLastCtaDone sharedMemoryRequestedPercentage tensorSizeMinusOneElements",
)
COPY = (
    1,
    {"src_kind": -1, "dst_kind": -1},
    "start greenContextId globalPid deprecatedSrcId migrationCause virtualAddress copyCount",
)
SET = 2, {"mem_kind": -1}, "start greenContextId globalPid"
GRAPH: tuple[int, dict[str, int], str] = 51, {}, "start greenContextId globalPid graphExecId"
PEERS = "src_device_id src_context_id dst_device_id dst_context_id"


def snake(column: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", column).lower()


@pytest.mark.parametrize(
    ("table", "case", "without"),
    [
        ("KERNEL", KERNEL, ""),
        ("MEMCPY", COPY, PEERS),
        ("MEMCPY", (22, COPY[1], COPY[2]), ""),
        ("MEMSET", SET, ""),
        ("GRAPH_TRACE", GRAPH, ""),
    ],
    ids=["kernel", "copy", "peer copy", "set", "graph"],
)
def test_every_field_of_cupti_reaches_its_column(
    run: Any, query: Any, table: str, case: tuple[int, dict[str, int], str], without: str
) -> None:
    """Each field of CUPTI's record has a number of its own, so none can stand in for another."""
    kind, more, others = case
    done = run(f"""
with profiling_lab.record(OUT): numbers = fake.numbered({kind}).decode()
print(numbers)
""")
    fields = {name: int(number) for name, number in (pair.split("=") for pair in done.stdout.split())}
    table = f"CUPTI_ACTIVITY_KIND_{table}"
    (row,) = query(f"SELECT * FROM {table}")
    got = dict(zip(column_names(table), row, strict=True))
    # A time is told from the recording's start, which is none of the numbers.
    got["end_ns"] = got.pop("end") - got["start"] + fields["start_ns"]
    compared = {snake(name) for name in got} & set(fields) - set(without.split())
    expected = {name: fields[name] + more.get(name, 0) for name in compared}
    assert {snake(name): value for name, value in got.items() if snake(name) in compared} == expected
    left = {name for name in got if snake(name) not in compared}
    assert left == {name for name in got if snake(name) in without.split()} | set(others.split())
    if kind == 10:
        assert got["cacheConfig"] == fields["cache_configs"] >> 4


def layout(path: Path) -> dict[str, Any]:
    arrays = {name: a for name, a in _recorder.read_spool(str(path)).items() if isinstance(a, np.ndarray)}
    return {
        name: (
            array.dtype.itemsize,
            {f: (d.str, at) for f, (d, at, *_) in (array.dtype.fields or {}).items()},
        )
        for name, array in arrays.items()
    }


@pytest.fixture
def spool(run: Any, tmp_path: Path) -> Path:
    run("""
recorder = profiling_lab.recording.Recorder(OUT, flush_period_ms=20); recorder.start()
fake.kernel("a"); fake.copy(); time.sleep(0.2)
os._exit(0)
""")
    return tmp_path / "out.sqlite.spool"


def test_another_layout_is_another_version(spool: Path) -> None:
    kind, _, header = parts(spool.read_bytes())[0]
    assert kind == 1
    version = int.from_bytes(header[:4], "little")
    total = zlib.crc32(repr(sorted(layout(spool).items())).encode())
    assert LAYOUTS.get(version) == total, f"count kFormatVersion up if the bytes changed, and note {total:#x}"


def test_columns_of_numpy_are_those_of_the_file(spool: Path) -> None:
    """The size of a record in its block is numpy's, and the columns cover all of it but the last pad."""
    known = layout(spool)
    sizes = {kind: size for kind, size, _ in parts(spool.read_bytes())}
    assert (sizes[4], sizes[5], sizes[6]) == tuple(known[k][0] for k in ("calls", "kernels", "copies"))
    for name, (size, fields) in known.items():
        ends = sorted((at, at + np.dtype(form).itemsize) for form, at in fields.values())
        assert [begin for begin, _ in ends[1:]] == [end for _, end in ends[:-1]] and ends[0][0] == 0, name
        assert size - ends[-1][1] in (0, 4), name
