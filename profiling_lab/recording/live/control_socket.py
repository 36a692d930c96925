# SPDX-License-Identifier: Apache-2.0
"""The private control socket of a live process: its location and its access control.

One folder per user (mode 0700) contains one socket per process (mode 0600), named by its process id. Both
ends verify the peer through the kernel (SO_PEERCRED). The folder is in /tmp and not in $XDG_RUNTIME_DIR,
which is removed when the user logs out during a long job, and which another shell of the user may not have.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from profiling_lab.errors import LabError, UsageError

FOLDER_VARIABLE = "PROFILING_LAB_SOCKETS"
"""overrides the folder /tmp/profiling-lab-<user id>"""
MOST_BYTES = 64 * 1024
_SECONDS_TO_CONNECT = 30  # for many clients at once, or a stopped process
_CREDENTIALS = struct.Struct("iII")  # SO_PEERCRED: process, user, group


def folder_of(user: int) -> str:
    return os.environ.get(FOLDER_VARIABLE) or f"/tmp/profiling-lab-{user}"


@contextmanager
def private_folder(user: int, *, create: bool = False) -> Iterator[int]:
    """The descriptor of the folder of this user's sockets.

    Raises LabError if other users can access it, FileNotFoundError if there is none.
    """
    path = folder_of(user)
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LabError(f"the socket folder {path} cannot be used: {error.strerror}") from None
    try:
        facts = os.fstat(folder)
        if facts.st_uid != user or facts.st_mode & 0o077:
            raise LabError(
                f"{path} must belong to user {user} alone (mode 0700), not to user {facts.st_uid} with mode "
                f"{stat.S_IMODE(facts.st_mode):04o}; set {FOLDER_VARIABLE} to use another folder"
            )
        yield folder
    finally:
        os.close(folder)


def _name(process: int) -> str:
    return f"{process}.sock"


def _address(folder: int, name: str) -> str:
    """An address through the open folder, which cannot be replaced meanwhile and may have a long path."""
    return f"/proc/self/fd/{folder}/{name}"


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def bind(process: int) -> socket.socket:
    """Create the listening socket of this process. Raises LabError or OSError if that fails."""
    ours = _new_socket()
    try:
        with private_folder(os.geteuid(), create=True) as folder:
            os.fchmod(ours.fileno(), 0o600)  # before bind(), so that the file never has another mode
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_name(process), dir_fd=folder)  # left by a dead process, or from before exec
            ours.bind(_address(folder, _name(process)))
        ours.listen(8)
        ours.setblocking(False)
    except BaseException:
        ours.close()
        raise
    return ours


def remove(process: int) -> None:
    """Remove the socket's file. Never raises."""
    with contextlib.suppress(OSError, LabError), private_folder(os.geteuid()) as folder:
        os.unlink(_name(process), dir_fd=folder)


def peer(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(packed)
    return process, user


def processes(user: int) -> list[int]:
    """The processes of this user that have a socket, whether they are still running or not."""
    try:
        with private_folder(user) as folder:
            names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(
        int(name[: -len(".sock")]) for name in names if name.endswith(".sock") and name[:-5].isdecimal()
    )


def connect(process: int) -> socket.socket:
    """Connect to this process. Raises UsageError if it does not listen, LabError for other failures."""
    try:
        user = _user_of(process)
    except OSError:
        _clean(process, os.geteuid())
        raise UsageError(f"there is no process {process}") from None
    if user != os.geteuid() and os.geteuid() != 0:
        raise UsageError(f"process {process} belongs to user {user}: only that user can record it")
    waits = "start it with `profiling-lab record --dormant SCRIPT`"
    ours = _new_socket()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SECONDS_TO_CONNECT, 0))
    try:
        with private_folder(user) as folder:
            ours.connect(_address(folder, _name(process)))
    except FileNotFoundError:
        ours.close()
        raise UsageError(f"process {process} cannot be attached to: {waits}") from None
    except ConnectionRefusedError:
        ours.close()
        _clean(process, user)
        raise UsageError(
            f"process {process} can no longer be attached to, or runs another program: {waits}"
        ) from None
    except BlockingIOError:
        ours.close()
        raise LabError(f"process {process} does not answer: it is stopped, or has too many clients") from None
    except OSError as error:
        ours.close()
        raise LabError(f"process {process} cannot be attached to: {error.strerror}") from None
    except LabError:
        ours.close()
        raise
    there = peer(ours)
    if there != (process, user):
        ours.close()
        raise LabError(
            f"the socket of process {process} is answered by process {there[0]} of user {there[1]}: "
            "is it in another container?"
        )
    return ours


def _user_of(process: int) -> int:
    """The effective user of a process. The owner of its /proc folder is root if it is not dumpable."""
    with open(f"/proc/{process}/status", "rb") as file:
        line = next(line for line in file if line.startswith(b"Uid:"))
    return int(line.split()[2])  # the effective user


def _clean(process: int, user: int) -> None:
    """Remove a socket without a listener."""
    probe = _new_socket()
    try:
        with private_folder(user) as folder:
            before = os.lstat(_name(process), dir_fd=folder)
            try:
                probe.connect(_address(folder, _name(process)))
            except ConnectionRefusedError:
                if os.path.samestat(os.lstat(_name(process), dir_fd=folder), before):
                    os.unlink(_name(process), dir_fd=folder)
    except (OSError, LabError):
        pass
    finally:
        probe.close()


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one message. File names that are not valid UTF-8 are transported by JSON escapes."""
    connection.send(json.dumps(message).encode("ascii"))


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """The next message; None: the peer is gone. Raises ValueError for malformed messages."""
    try:
        packet = connection.recv(MOST_BYTES)
    except ConnectionResetError:
        return None
    if not packet:
        return None
    message = json.loads(packet.decode("ascii"))
    if not isinstance(message, dict):
        raise ValueError("expected a JSON object")
    return message
