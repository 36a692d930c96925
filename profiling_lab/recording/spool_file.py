# SPDX-License-Identifier: Apache-2.0
"""The lock of a capture file: which process owns it, and whether its recording still runs.

A recorder creates its file with O_EXCL and holds a lock (flock) on it until the recording is written. A
file without a lock belongs to a killed process. On file systems without locks, a file counts as being
written while its last change is less than `STILL_WRITTEN_S` old, because a recorder writes at least once
per second.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import time
from enum import Enum
from pathlib import Path

STILL_WRITTEN_S = 60
_ATTEMPTS = 100


class Occupant(Enum):
    """What already exists at the path of a new capture file."""

    LIVE = "a running recording"
    DEAD = "the file of a killed recording"
    OTHER = "something else: a link, a folder, a device, or another user's file"


class OccupiedError(Exception):
    """The path is occupied. `process` wrote the file; 0 if unknown."""

    def __init__(self, path: Path, occupant: Occupant, process: int = 0) -> None:
        super().__init__(f"{path}: {occupant.value}")
        self.path, self.occupant, self.process = path, occupant, process


def create(path: Path, *, replace_dead: bool = False) -> int:
    """Create a locked file, readable only by its owner. The caller owns the descriptor.

    Raises OccupiedError if the path is occupied, OSError if the file cannot be created. With `replace_dead` a
    file whose process is gone is replaced; nothing else is ever replaced.
    """
    for _ in range(_ATTEMPTS):
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_APPEND | os.O_CLOEXEC
        try:
            file = os.open(path, flags, 0o600)
        except FileExistsError:
            _make_way(path, replace_dead)
            continue
        # Between the two calls another process may have replaced the file, because it looked dead.
        if _lock(file, fcntl.LOCK_EX) is not False and is_at(file, path):
            return file
        os.close(file)
    raise OccupiedError(path, Occupant.LIVE)


def open_finished(path: Path) -> int:
    """A descriptor of a complete capture file. While it is open, no recorder replaces the file.

    Raises OccupiedError if it is still being written or not a regular file, OSError if it cannot be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OccupiedError(path, Occupant.OTHER)
        if _is_written(file, fcntl.LOCK_SH):
            raise OccupiedError(path, Occupant.LIVE, _process(file))
    except BaseException:
        os.close(file)
        raise
    return file


def is_at(file: int, path: Path) -> bool:
    """Whether `path` refers to the file of this descriptor."""
    try:
        there = os.lstat(path)
    except OSError:
        return False
    return os.path.samestat(os.fstat(file), there)


def remove(file: int, path: Path) -> None:
    """Delete the file of this descriptor if it is at this path. Its lock is not affected."""
    with contextlib.suppress(OSError):
        if is_at(file, path):
            os.unlink(path)


def place(file: int, path: Path) -> Path | None:
    """The current path of this descriptor's file, because its folder may have been renamed. None: deleted."""
    if is_at(file, path):
        return path
    with contextlib.suppress(OSError):
        now = Path(os.readlink(f"/proc/self/fd/{file}"))
        if is_at(file, now):
            return now
    return None


def _make_way(path: Path, replace_dead: bool) -> None:
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise OccupiedError(path, Occupant.OTHER)
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:  # gone meanwhile
        return
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP):
            raise OccupiedError(path, Occupant.OTHER) from error
        raise
    try:
        if _is_written(file, fcntl.LOCK_EX):
            raise OccupiedError(path, Occupant.LIVE, _process(file))
        if not replace_dead:
            raise OccupiedError(path, Occupant.DEAD, _process(file))
        if is_at(file, path):  # we hold its lock, so no one else may replace it
            os.unlink(path)
    finally:
        os.close(file)


def _is_written(file: int, lock: int) -> bool:
    held = _lock(file, lock)
    if held is None:
        return time.time() - os.fstat(file).st_mtime < STILL_WRITTEN_S
    return not held


def _lock(file: int, kind: int) -> bool | None:
    """Whether the lock was acquired; None if the file system has no locks."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


def _process(file: int) -> int:
    """The process id in the first block of a capture file, 0 if there is none."""
    with contextlib.suppress(OSError):
        block = os.pread(file, 24, 0)
        if len(block) == 24 and block[:4] == b"PLSL":
            return int(struct.unpack_from("=I", block, 20)[0])
    return 0


def why_taken(taken: OccupiedError) -> str:
    """The sentence for people, of a recording that cannot begin."""
    if taken.occupant is Occupant.LIVE:
        by = f" (process {taken.process})" if taken.process else ""
        return f"{taken.path} is being written by a running recording{by}; choose another name"
    if taken.occupant is Occupant.DEAD:
        return (
            f"{taken.path} belongs to a recording that was not finished: profiling-lab recover turns it "
            "into a file, "
            "overwrite=True (--overwrite) deletes it"
        )
    return f"{taken.path} cannot be written by the recorder: it is a link, a folder or another user's file"
