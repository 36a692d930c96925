# SPDX-License-Identifier: Apache-2.0
"""The capture file: every whole block of it is read, whatever happened to it or to its writer."""

from __future__ import annotations

import itertools
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from recorder.spool_blocks import crc32c, positions

from profiling_lab import _recorder
from profiling_lab.cli import main
from profiling_lab.errors import UnreadableInputError
from profiling_lab.recording.convert import convert


@pytest.fixture
def spool(run: Any, tmp_path: Path) -> Path:
    """A capture with a few blocks of every kind."""
    run("""
recorder = profiling_lab.recording.Recorder(OUT, flush_period_ms=20); recorder.start()
for i in range(20): fake.kernel(f"kernel_{i}"); fake.copy(); time.sleep(0.005)
time.sleep(0.2)
os._exit(0)
""")
    return tmp_path / "out.sqlite.spool"


def rows(path: Path) -> dict[str, int]:
    contents = _recorder.read_spool(str(path))
    return {kind: len(contents[kind]) for kind in ("calls", "kernels", "copies", "strings")}


def test_every_prefix_of_a_capture_can_be_read(spool: Path, tmp_path: Path) -> None:
    whole, seen = spool.read_bytes(), []
    assert rows(spool)["kernels"] == 20
    cut = tmp_path / "cut.spool"
    for length in [*range(40, len(whole), 97), len(whole)]:
        cut.write_bytes(whole[:length])
        seen.append(rows(cut))
    for before, after in itertools.pairwise(seen):
        assert all(before[kind] <= after[kind] for kind in before)
    assert seen[-1] == rows(spool)
    cut.write_bytes(whole[: len(whole) // 2])
    converted = convert(cut, tmp_path / "half.sqlite")
    assert converted.rows["PYREC_LAUNCH"] == rows(cut)["calls"] > 0


def kernel_names(path: Path) -> list[str]:
    contents = _recorder.read_spool(str(path))
    texts = dict(enumerate(contents["strings"]))
    return [texts.get(i, "") for i in contents["kernels"]["mangled_name"].tolist()]


@pytest.mark.parametrize("where", [0, 4, 8, 9, 12, 16, -1], ids=str)
def test_a_damaged_block_is_skipped_and_counted(spool: Path, tmp_path: Path, where: int) -> None:
    """In its magic, kind, length (twice), sum, first or last byte: every other block is read as before."""
    whole, names = spool.read_bytes(), kernel_names(spool)
    records = {4: "calls", 5: "kernels", 6: "copies", 3: "strings"}
    before, path, cases = rows(spool), tmp_path / "damaged.spool", set()
    for kind, begin, end in positions(whole)[1:]:
        damaged = bytearray(whole)
        damaged[begin + where if where >= 0 else end + where] ^= 0x40
        path.write_bytes(damaged)
        contents, after = _recorder.read_spool(str(path)), rows(path)
        assert (contents["unreadable_bytes"], contents["unreadable_places"]) == (end - begin, 1)
        for number, name in records.items():
            assert after[name] == before[name] or number == kind, (kind, name)
        if kind in (4, 5, 6):
            assert after[records[kind]] < before[records[kind]]
        if kind != 5:  # no name moves to another kernel
            assert all(a in (b, "") for a, b in zip(kernel_names(path), names, strict=True))
        cases.add(kind)
    assert {3, 4, 5, 6} <= cases


def test_what_was_skipped_is_reported(
    spool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = bytearray(spool.read_bytes())
    begin, end = next((begin, end) for kind, begin, end in positions(bytes(content)) if kind == 5)
    content[end - 1] ^= 1
    spool.write_bytes(content)
    out = tmp_path / "told.sqlite"
    assert main(["recover", str(spool), "-o", str(out)]) == 0
    skipped = f"{end - begin:,} bytes of the capture"
    assert f"{skipped} could not be read and were skipped" in capsys.readouterr().err
    assert main(["info", str(out)]) == 0
    assert f"{skipped}, which could not be read" in capsys.readouterr().out
    with closing(sqlite3.connect(out)) as file:
        meta = dict(file.execute("SELECT name, value FROM PYREC_META"))
    assert (meta["unreadable_bytes"], meta["unreadable_places"]) == (str(end - begin), "1")


def test_more_text_than_a_block_holds(run: Any, query: Any) -> None:
    """100 MB of names before the first record that needs them."""
    run("""
with profiling_lab.record(OUT, flush_period_ms=1_000_000) as recorder:
    for i in range(100): fake.kernel(f"kernel_{i}_" + "x" * 1_000_000)
    fake.copy()
assert recorder.summary.kernels == 100 and recorder.summary.dropped == 0, recorder.summary
""")
    names = "SELECT count(DISTINCT value) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = mangledName"
    assert query(names + " WHERE length(value) > 1000000") == [(100,)]
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_MEMCPY") == [(1,)]
    assert query("SELECT value FROM PYREC_META WHERE name = 'unreadable_bytes'") == [("0",)]


def test_a_text_that_no_block_holds_is_cut_and_reported(run: Any, query: Any) -> None:
    run("""
with profiling_lab.record(OUT) as recorder:
    fake.kernel("y" * 70_000_000); fake.kernel("small")
assert recorder.summary.kernels == 2 and recorder.summary.dropped == 1, recorder.summary
""")
    names = "SELECT length(value) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = mangledName"
    assert query(names) == [(16 << 20,), (5,)]
    assert query("SELECT value FROM PYREC_META WHERE name = 'texts_cut'") == [("1",)]


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\x00" + bytes(100), bytes(5000), b"PLSL" * 100])
def test_what_is_no_capture_is_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.spool"
    path.write_bytes(content)
    with pytest.raises(UnreadableInputError, match="is not a capture of the recorder"):
        convert(path, tmp_path / "out.sqlite")
    assert not (tmp_path / "out.sqlite").exists()


def test_a_missing_capture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInputError, match="No such file"):
        convert(tmp_path / "none.spool", tmp_path / "out.sqlite")


def test_a_capture_of_another_version_is_refused(spool: Path, tmp_path: Path) -> None:
    content = bytearray(spool.read_bytes())
    content[16:20] = struct.pack("<I", 99)
    content[12:16] = struct.pack("<I", crc32c(content[:12] + content[16:32]))
    spool.write_bytes(content)
    with pytest.raises(UnreadableInputError, match="its format is 99"):
        convert(spool, tmp_path / "out.sqlite")


def test_a_full_disk_stops_the_writing_and_is_reported(run: Any) -> None:
    run("""
import resource
from profiling_lab import _recorder
from profiling_lab.cli import main
recorder = profiling_lab.recording.Recorder(OUT, flush_period_ms=20)
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
recorder.start()
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
begin = time.perf_counter()
for _ in range(2000): fake.kernel("a")
assert time.perf_counter() - begin < 600, "launches wait for the full disk"
time.sleep(0.2)
status = _recorder.status()
assert int(status["dropped_bytes"]) > 0 and "too large" in status["write_error"], status
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
summary = recorder.stop()
assert summary.reasons["write"].startswith("File too large"), summary
""")


def test_a_recording_that_cannot_be_written_at_the_end_keeps_its_capture(run: Any, tmp_path: Path) -> None:
    done = run("""
os.mkdir("sub")
recorder = profiling_lab.recording.Recorder("sub/out.sqlite"); recorder.start(); fake.kernel("a")
os.mkdir("sub/out.sqlite.tmp")
try: recorder.stop()
except profiling_lab.errors.LabError as error: print(error)
else: raise SystemExit("no error")
""")
    assert done.stdout.startswith("cannot write /") and "sub/out.sqlite.spool" in done.stdout
    assert rows(tmp_path / "sub" / "out.sqlite.spool")["kernels"] == 1


def test_ctrl_c_while_the_file_is_being_written_loses_nothing(run: Any, tmp_path: Path) -> None:
    run("""
from profiling_lab.recording import convert
recorder = profiling_lab.recording.Recorder(OUT); recorder.start(); fake.kernel("a")
write = convert._write
def interrupted(path, tables):
    write(path, tables)
    raise KeyboardInterrupt
convert._write = interrupted
try: recorder.stop()
except KeyboardInterrupt: pass
else: raise SystemExit("was swallowed")
""")
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.sqlite.spool"]
    assert convert(tmp_path / "out.sqlite.spool", tmp_path / "out.sqlite").rows["PYREC_LAUNCH"] == 1
