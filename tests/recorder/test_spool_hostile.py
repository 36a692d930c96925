# SPDX-License-Identifier: Apache-2.0
"""Damaged and crafted captures: reading them ends, with a whole file or with one sentence."""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from recorder.spool_blocks import block, parts

from profiling_lab import _recorder
from profiling_lab.cli import main
from profiling_lab.recording.convert import convert

HEADER = block(1, 16, struct.pack("<IIQ", 4, 1234, time.time_ns()))
ATTEMPTS = int(os.environ.get("PROFILING_LAB_MUTATIONS", "60"))

SPOOL = """
from profiling_lab import _recorder
recorder = profiling_lab.recording.Recorder(OUT, flush_period_ms=20, sample_hz=200); recorder.start()
def deep(n):
    if n: return deep(n - 1)
    fake.kernel(f"_Z6kernelIfEvT_"); fake.copy()
for i in range(12): deep(i); fake.kernel(f"kernel_{i}"); time.sleep(0.005)
while int(_recorder.status()["kernels"]) < 24: time.sleep(0.01)
_recorder.add_meta({"gpu_info": "[]", "generated_code": '{"files": {}, "frames": []}'})
os._exit(0)
"""

MUTATE = """
import random, sqlite3, traceback
from recorder.spool_blocks import block, parts
from profiling_lab.errors import UnreadableInputError
from profiling_lab.recording import convert as conversion
from profiling_lab.recording.convert import convert
conversion.enum_rows = dict  # the same in every file, and most of the time that a small one takes
whole = open(OUT + ".spool", "rb").read()
apart = parts(whole)
SPECIAL = [0, 1, 2, 0x7F, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 62, 1 << 63, (1 << 64) - 1]

def damaged(chance):
    content = bytearray(whole)
    for _ in range(chance.randint(1, 4)):
        what, at = chance.randrange(4), chance.randrange(len(content))
        if what == 0: content[at] ^= 1 << chance.randrange(8)
        elif what == 1: del content[at:at + chance.randint(1, 500)]
        elif what == 2: content[at:at] = content[at // 2 : at // 2 + chance.randint(1, 500)]
        else: content[at:at] = chance.randbytes(chance.randint(1, 200))
        if not content: break
    return bytes(content)

def crafted(chance):
    # The sums are right: the reader returns whatever was written.
    blocks = list(apart)
    for _ in range(chance.randint(1, 5)):
        number = chance.randrange(len(blocks))
        kind, size, payload = blocks[number]
        what = chance.randrange(8)
        if what == 0: blocks.insert(chance.randrange(len(blocks)), blocks[number])
        elif what == 1: del blocks[number]
        elif what == 2: payload = chance.randbytes(len(payload))
        elif payload:
            changed, width = bytearray(payload), chance.choice([1, 4, 8])
            first, step = chance.randrange(4) * 4, chance.choice([size, 4, 1 << 20])
            for at in range(first, len(payload) - width + 1, step):
                value = chance.choice(SPECIAL) % (1 << 8 * width)
                changed[at:at + width] = value.to_bytes(width, "little")
            payload = bytes(changed)
        if what > 1: blocks[number] = (kind, size, payload)
        if not blocks: break
    return b"".join(block(*b) for b in blocks)

outcomes = {"file": 0, "sentence": 0}
for make in (damaged, crafted):
    for seed in range(ATTEMPTS):
        content = make(random.Random(seed))
        open("x.spool", "wb").write(content)
        try:
            convert("x.spool", "x.sqlite")
            file = sqlite3.connect("x.sqlite")
            assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            file.close()
            assert os.path.getsize("x.sqlite") < 100 * len(whole) + (4 << 20), (make, seed)
            os.unlink("x.sqlite")
            outcomes["file"] += 1
        except UnreadableInputError as error:
            assert "\\n" not in str(error) and "x.spool" in str(error), (make, seed, str(error))
            outcomes["sentence"] += 1
        except BaseException:
            print(make.__name__, seed)
            raise
        assert not os.path.exists("x.sqlite") and not os.path.exists("x.sqlite.tmp"), (make, seed)
print(outcomes, time.perf_counter())
assert outcomes["file"] > ATTEMPTS // 2, outcomes
"""


def test_mutated_captures_end_in_a_file_or_a_sentence(run: Any) -> None:
    run(SPOOL)
    folder = str(Path(__file__).resolve().parents[1])
    run(f"sys.path.append({folder!r}); ATTEMPTS = {ATTEMPTS}\n" + MUTATE, timeout=600)


def node(number: int, parent: int, depth: int) -> bytes:
    return struct.pack("<IIIIiiII", number, parent, 0, 0, number, 1, depth, 0)


def call(correlation: int, stack: int) -> bytes:
    return struct.pack("<QQqqQQIIIIIiII", *(1, 2, -1, -1, 0, 0), *(7, correlation, 0, stack, 0), 0, 0, 0)


def recovered(tmp_path: Path, *blocks: bytes) -> dict[str, str]:
    path, out = tmp_path / "crafted.spool", tmp_path / "crafted.sqlite"
    path.write_bytes(HEADER + block(3, 1, struct.pack("<II3s", 0, 3, b"abc")) + b"".join(blocks))
    assert main(["recover", str(path), "-o", str(out), "--overwrite"]) == 0
    with closing(sqlite3.connect(out)) as file:
        return dict(file.execute("SELECT name, value FROM PYREC_META"))


@pytest.mark.parametrize("depths", [(1, 2), (5, 5), (2, 3), (0, 0xFFFFFFFF)], ids=str)
def test_stacks_that_lead_in_a_circle(tmp_path: Path, depths: tuple[int, int]) -> None:
    circle = node(1, 2, depths[0]) + node(2, 1, depths[1]) + node(3, 3, 1)
    meta = recovered(tmp_path, block(14, 32, circle), block(4, 80, b"".join(call(i, i) for i in (1, 2, 3))))
    assert int(meta["stacks_cut"]) >= 2 and meta["stacks_lost"] == "0"


def test_a_stack_with_the_number_of_none(tmp_path: Path) -> None:
    """Its caller is itself."""
    recovered(tmp_path, block(14, 32, node(0, 0, 0) + node(1, 0, 1)), block(4, 80, call(1, 1)))


def test_stacks_deeper_than_any(tmp_path: Path) -> None:
    """20,000 frames, each called: the texts of all of them would be 10 GB."""
    deep = b"".join(node(i, i - 1, i) for i in range(1, 20_001))
    calls = b"".join(call(i, i) for i in range(1, 20_001, 100))
    meta = recovered(tmp_path, block(14, 32, deep), block(4, 80, calls))
    assert int(meta["stacks_cut"]) == 20_000 - _recorder.python_stacks.MAX_DEPTH


def test_graph_nodes_that_lead_in_a_circle_or_far(tmp_path: Path) -> None:
    """A hundred thousand copies of copies, and two that are copies of each other."""
    rows = b"".join(struct.pack("<QQII", i, i - 1, 9 * (i == 1), 0) for i in range(100_000, 0, -1))
    rows += struct.pack("<QQII", 200_000, 200_001, 0, 0) + struct.pack("<QQII", 200_001, 200_000, 0, 0)
    recovered(tmp_path, block(23, 24, rows), block(4, 80, call(9, 0)))
    with closing(sqlite3.connect(tmp_path / "crafted.sqlite")) as file:
        found = "SELECT count(*), min(correlationId), max(correlationId) FROM PYREC_GRAPH_NODE"
        assert file.execute(found).fetchone() == (100_000, 9, 9)


def test_a_number_of_strings_that_nothing_could_have_held(tmp_path: Path) -> None:
    """It would ask for 100 GB of empty ones."""
    meta = recovered(
        tmp_path, block(3, 1, struct.pack("<II1s", 0xF0000000, 1, b"x")), block(4, 80, call(1, 0))
    )
    assert meta["unreadable_places"] == "1"


def test_a_file_of_nothing_but_beginnings(tmp_path: Path) -> None:
    """Each claims the rest of the file: summing that up for each would take days."""
    false = struct.pack("<4sHHII", b"PLSL", 4, 80, 80 * 500_000, 0)
    path = tmp_path / "false.spool"
    path.write_bytes(HEADER + false * 4_000_000)
    contents = _recorder.read_spool(str(path))
    assert contents["unreadable_bytes"] == len(false) * 4_000_000


def test_what_no_recorder_writes_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = b"".join(struct.pack("<I", len(t)) + t for t in (b"gpu_info", b"{no JSON \xff"))
    path = tmp_path / "x.spool"
    path.write_bytes(HEADER + block(2, 1, entry))
    assert main(["recover", str(path)]) == 4
    said = capsys.readouterr().err
    assert "x.spool contains data that no recorder writes" in said and said.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["x.spool"]


def test_a_capture_can_be_split_and_joined(run: Any, tmp_path: Path) -> None:
    run(SPOOL)
    whole = (tmp_path / "out.sqlite.spool").read_bytes()
    assert b"".join(block(*part) for part in parts(whole)) == whole
    rows = convert(tmp_path / "out.sqlite.spool", tmp_path / "x.sqlite").rows
    assert rows["CUPTI_ACTIVITY_KIND_KERNEL"] == 24 and rows["NVTX_EVENTS"] > 24
