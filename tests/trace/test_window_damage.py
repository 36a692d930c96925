# SPDX-License-Identifier: Apache-2.0
"""Windows over damaged files: an answer that adds up, or one clear sentence."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest
from builders import SCHEMA, create_table
from damage import answer_or_sentence, put_wild_values
from fuzz_sqlite import everything

from profiling_lab.analysis.gaps.gaps import gaps
from profiling_lab.analysis.gaps.longest import longest_gaps
from profiling_lab.analysis.info import info
from profiling_lab.analysis.lines import lines
from profiling_lab.analysis.overlap.overlap import overlap
from profiling_lab.analysis.overlap.pairs import overlap_pairs
from profiling_lab.analysis.steps import steps
from profiling_lab.trace import Trace
from profiling_lab.trace.window import WindowSelection

WINDOWS = (
    WindowSelection(),
    WindowSelection(step="0"),
    WindowSelection(step="-1"),
    WindowSelection(step=":"),
    WindowSelection(range="10us:200us"),
    WindowSelection(range=":1ms"),
    WindowSelection(nvtx=".*"),
    WindowSelection(nvtx="forward/0"),
    WindowSelection(ranks=(0,)),
    WindowSelection(devices=(0,)),
    WindowSelection(range="1ns:", devices=(0,), ranks=(0,)),
)
EXTRA = {
    "SCHED_EVENTS": "start! isSchedIn! globalTid",
    "COMPOSITE_EVENTS": "id! start! globalTid",
    "SAMPLING_CALLCHAINS": "id! symbol! module! unresolved stackDepth!",
}


def use(path: Path) -> int:
    """All that there is in windows; how many of them gave an answer."""
    answers = 0
    for wanted in WINDOWS:
        with answer_or_sentence(), Trace.open(path) as whole:
            part = whole.windowed(wanted)
            info(part)
            lines(part, by="kernel")
            for row in steps(part, host=True).rows:
                assert sum(row.categories_ns) == row.wall_ns
                assert sum(row.categories_ns[4:]) == row.idle_ns
            idle = gaps(part)
            assert sum(row.idle_ns for row in idle.rows) == idle.idle_ns == idle.parts_ns[3]
            assert sum(gap.idle_ns for gap in longest_gaps(part).gaps) == idle.idle_ns
            devices = overlap(part).devices
            assert sum(device.span_ns for device in devices) == idle.span_ns
            assert all(sum(device.level_ns) == device.span_ns for device in devices)
            assert all(row.together_ns > 0 for row in overlap_pairs(part))
            answers += 1
    return answers


def with_host_tables(path: Path) -> Path:
    with sqlite3.connect(path) as file:
        (tid,) = file.execute("SELECT globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME LIMIT 1").fetchone()
        (start,) = file.execute("SELECT min(start) FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()
        for table, columns in ({"OSRT_API": SCHEMA["OSRT_API"]} | EXTRA).items():
            SCHEMA.setdefault(table, columns)
            file.execute(f"DROP TABLE IF EXISTS {table}")
            file.execute(create_table(table))
        for i in range(12):
            at = start + 7_000 * i
            file.execute(
                "INSERT INTO OSRT_API (start, end, globalTid, nameId) VALUES (?, ?, ?, 1)",
                (at, at + 2_000, tid),
            )
            file.execute("INSERT INTO SCHED_EVENTS VALUES (?, ?, ?)", (at, i % 2, tid))
            file.execute("INSERT INTO COMPOSITE_EVENTS VALUES (?, ?, ?)", (i, at, tid))
            file.execute("INSERT INTO SAMPLING_CALLCHAINS VALUES (?, 1, 2, 0, 0)", (i,))
    file.close()
    return path


def test_the_undamaged_file_has_answers(tmp_path: Path) -> None:
    for form in ("recorder", "nsys"):
        assert use(with_host_tables(everything(form).write(tmp_path / f"{form}.sqlite"))) >= 5


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("form", ["recorder", "nsys"])
def test_damaged_values(tmp_path: Path, form: str, seed: int) -> None:
    path = with_host_tables(everything(form).write(tmp_path / "t.sqlite"))
    put_wild_values(path, random.Random(seed), 5)
    use(path)
