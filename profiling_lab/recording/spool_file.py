# SPDX-License-Identifier: Apache-2.0
"""Who owns a capture file, and whether its recording still runs.

A recorder creates its file with O_EXCL and holds a lock (flock) on it until the recording is written. A file
without the lock was left by a process that was killed. On file systems without locks a file counts as being
written while its last change is less than `STILL_WRITTEN_S` old: a recorder writes at least once a second.
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


class Held(Enum):
    """What stands where a file was to be created."""

    LIVE = "a recording that runs"
    DEAD = "what a killed recording left"
    OTHER = "something else: a link, a folder, a device, or another user's file"


class OccupiedError(Exception):
    """The name is taken. `process` is the one that wrote the file, 0 where that is not known."""

    def __init__(self, path: Path, held: Held, process: int = 0) -> None:
        super().__init__(f"{path}: {held.value}")
        self.path, self.held, self.process = path, held, process


def create(path: Path, *, replace_dead: bool = False) -> int:
    """A new, locked file, readable by its owner alone; the descriptor is the caller's.

    Raises OccupiedError where the name is taken, OSError where the file cannot be made. A file whose process
    is gone is replaced with `replace_dead`; nothing else ever is.
    """
    for _ in range(_ATTEMPTS):
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_APPEND | os.O_CLOEXEC
        try:
            file = os.open(path, flags, 0o600)
        except FileExistsError:
            _make_way(path, replace_dead)
            continue
        # Between the two calls another process may have taken the file for a dead one.
        if _lock(file, fcntl.LOCK_EX) is not False and is_at(file, path):
            return file
        os.close(file)
    raise OccupiedError(path, Held.LIVE)


def open_finished(path: Path) -> int:
    """A descriptor of a capture file that nobody writes any more; while it is open, nobody replaces the file.

    Raises OccupiedError if it is still written or no plain file, OSError if it cannot be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OccupiedError(path, Held.OTHER)
        if _is_written(file, fcntl.LOCK_SH):
            raise OccupiedError(path, Held.LIVE, _process(file))
    except BaseException:
        os.close(file)
        raise
    return file


def is_at(file: int, path: Path) -> bool:
    """Whether `path` names the file behind this descriptor."""
    try:
        there = os.lstat(path)
    except OSError:
        return False
    return os.path.samestat(os.fstat(file), there)


def remove(file: int, path: Path) -> None:
    """Delete the file behind this descriptor if it has this name. Whoever holds its lock is not disturbed."""
    with contextlib.suppress(OSError):
        if is_at(file, path):
            os.unlink(path)


def place(file: int, path: Path) -> Path | None:
    """Where the file behind this descriptor is now: its folder may have been renamed. None: deleted."""
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
            raise OccupiedError(path, Held.OTHER)
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:  # gone meanwhile
        return
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP):
            raise OccupiedError(path, Held.OTHER) from error
        raise
    try:
        if _is_written(file, fcntl.LOCK_EX):
            raise OccupiedError(path, Held.LIVE, _process(file))
        if not replace_dead:
            raise OccupiedError(path, Held.DEAD, _process(file))
        if is_at(file, path):  # we hold its lock: nobody else may replace it now
            os.unlink(path)
    finally:
        os.close(file)


def _is_written(file: int, lock: int) -> bool:
    held = _lock(file, lock)
    if held is None:
        return time.time() - os.fstat(file).st_mtime < STILL_WRITTEN_S
    return not held


def _lock(file: int, kind: int) -> bool | None:
    """Whether the lock was had; None where the file system has none."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


def _process(file: int) -> int:
    """The process that a capture file names in its first block (csrc/recorder/spool/records.h), or 0."""
    with contextlib.suppress(OSError):
        block = os.pread(file, 24, 0)
        if len(block) == 24 and block[:4] == b"PLSL":
            return int(struct.unpack_from("=I", block, 20)[0])
    return 0
