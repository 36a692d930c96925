# SPDX-License-Identifier: Apache-2.0
"""The private socket through which a live process is asked for a recording: where it is, who may use it.

One folder per user, mode 0700, holds one socket per process, mode 0600, named by its process id. Both ends
ask the kernel who is at the other end. The folder stands in /tmp and not in $XDG_RUNTIME_DIR, which is
removed when its user logs out while a long job goes on, and which another shell of the user may not have.
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
"""names another folder than /tmp/profiling-lab-<user id>"""
MOST_BYTES = 64 * 1024
_SECONDS_TO_CONNECT = 30  # where many ask at once, or the process is stopped
_CREDENTIALS = struct.Struct("iII")  # of SO_PEERCRED: process, user, group


def folder_of(user: int) -> str:
    return os.environ.get(FOLDER_VARIABLE) or f"/tmp/profiling-lab-{user}"


@contextmanager
def private_folder(user: int, *, create: bool = False) -> Iterator[int]:
    """The descriptor of the folder of this user's sockets.

    Raises LabError if it is not this user's alone, FileNotFoundError if there is none.
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
        raise LabError(f"{path}, where the sockets are, is no folder to use: {error.strerror}") from None
    try:
        facts = os.fstat(folder)
        if facts.st_uid != user or facts.st_mode & 0o077:
            raise LabError(
                f"{path} must belong to user {user} alone (mode 0700), not to user {facts.st_uid} with mode "
                f"{stat.S_IMODE(facts.st_mode):04o}; {FOLDER_VARIABLE} can name another folder"
            )
        yield folder
    finally:
        os.close(folder)


def _name(process: int) -> str:
    return f"{process}.sock"


def _address(folder: int, name: str) -> str:
    """Through the open folder: nobody can exchange it meanwhile, and a long path does not matter."""
    return f"/proc/self/fd/{folder}/{name}"


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def bind(process: int) -> socket.socket:
    """The listening socket of this process. Raises LabError or OSError if there can be none."""
    ours = _new_socket()
    try:
        with private_folder(os.geteuid(), create=True) as folder:
            os.fchmod(ours.fileno(), 0o600)  # before bind(): the file is never there with another mode
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_name(process), dir_fd=folder)  # of a dead process with our id, or from before exec
            ours.bind(_address(folder, _name(process)))
        ours.listen(8)
        ours.setblocking(False)
    except BaseException:
        ours.close()
        raise
    return ours


def remove(process: int) -> None:
    """Take the socket's file away. Nothing can be wrong with that."""
    with contextlib.suppress(OSError, LabError), private_folder(os.geteuid()) as folder:
        os.unlink(_name(process), dir_fd=folder)


def peer(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(packed)
    return process, user


def processes(user: int) -> list[int]:
    """The processes of this user that have a socket, whether they still live or not."""
    try:
        with private_folder(user) as folder:
            names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(
        int(name[: -len(".sock")]) for name in names if name.endswith(".sock") and name[:-5].isdecimal()
    )


def connect(process: int) -> socket.socket:
    """A connection to this process. Raises UsageError where nobody can be asked, LabError otherwise."""
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
        raise UsageError(f"process {process} waits for no recording: {waits}") from None
    except ConnectionRefusedError:
        ours.close()
        _clean(process, user)
        raise UsageError(
            f"process {process} waits for no recording any more, or runs another program: {waits}"
        ) from None
    except BlockingIOError:
        ours.close()
        raise LabError(f"process {process} does not answer: it is stopped, or too many ask at once") from None
    except OSError as error:
        ours.close()
        raise LabError(f"process {process} cannot be asked: {error.strerror}") from None
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
    """Not the owner of its folder in /proc, who is root where a process may not be dumped."""
    with open(f"/proc/{process}/status", "rb") as file:
        line = next(line for line in file if line.startswith(b"Uid:"))
    return int(line.split()[2])  # the effective one


def _clean(process: int, user: int) -> None:
    """Remove a socket that nobody listens at any more."""
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
    """One message. Names of files may hold bytes that are no text: JSON's escapes carry them."""
    connection.send(json.dumps(message).encode("ascii"))


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """The next message; None: the other end is gone. Raises ValueError for anything that is none."""
    try:
        packet = connection.recv(MOST_BYTES)
    except ConnectionResetError:
        return None
    if not packet:
        return None
    message = json.loads(packet.decode("ascii"))
    if not isinstance(message, dict):
        raise ValueError("a message is an object")
    return message
