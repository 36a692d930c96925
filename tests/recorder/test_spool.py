# SPDX-License-Identifier: Apache-2.0
"""The capture file: readable up to the last whole block, whatever happened to it or to its writer."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from profiling_lab import _recorder
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


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


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


def test_a_damaged_block_ends_the_reading_and_is_counted(spool: Path, tmp_path: Path) -> None:
    whole = bytearray(spool.read_bytes())
    for position in range(100, len(whole), len(whole) // 23):
        damaged = bytearray(whole)
        damaged[position] ^= 0x40
        path = tmp_path / "damaged.spool"
        path.write_bytes(damaged)
        contents = _recorder.read_spool(str(path))
        assert contents["unreadable_bytes"] > 0
        assert len(contents["calls"]) <= 40


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
    import struct

    content = bytearray(spool.read_bytes())
    content[16:20] = struct.pack("<I", 99)
    content[12:16] = struct.pack("<I", crc32c(content[:12] + content[16:32]))
    spool.write_bytes(content)
    with pytest.raises(UnreadableInputError, match="its format is 99"):
        convert(spool, tmp_path / "out.sqlite")


def test_a_full_disk_stops_the_writing_and_is_told(run: Any) -> None:
    run("""
import resource
from profiling_lab import _recorder
recorder = profiling_lab.recording.Recorder(OUT, flush_period_ms=20)
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
recorder.start()
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
begin = time.perf_counter()
for _ in range(2000): fake.kernel("a")
assert time.perf_counter() - begin < 60, "launches wait for the full disk"
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
