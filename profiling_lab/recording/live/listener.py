# SPDX-License-Identifier: Apache-2.0
"""The process side of attach: a process that can be recorded while it runs.

listen() starts one thread. It sleeps in poll() until a client connects to the process's socket. While
dormant, CUPTI is not attached, no hook is installed, and no step is counted. A window is a Recorder that
this thread starts and stops; the program's own threads only signal the ends of steps. The capture stays in
the spool. The client converts it, so that the job has no overhead from the conversion.
"""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from typing import Any

from profiling_lab.errors import LabError
from profiling_lab.recording import other_profilers, process_end
from profiling_lab.recording.live import control_socket
from profiling_lab.recording.live.request import Request
from profiling_lab.recording.meta_names import is_in_the_meta_table
from profiling_lab.recording.recorder import Recorder
from profiling_lab.recording.schedule import RecorderState

PROTOCOL = 1
_MOST_CLIENTS = 16
_SECONDS_TO_END = 30.0
_FAULTS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGABRT")  # our own faults must be visible
_PHASES = {
    RecorderState.OFF: "waiting",
    RecorderState.WARM_UP: "warming up",
    RecorderState.RECORD: "recording",
}


class _Descriptor:
    """A descriptor that the program may close (os.closerange) and reuse for its own file."""

    def __init__(self, number: int) -> None:
        self.number = _moved_up(number)
        self._identity = self._look()

    def _look(self) -> tuple[int, int] | None:
        try:
            facts = os.fstat(self.number)
        except OSError:
            return None
        return facts.st_dev, facts.st_ino

    @property
    def is_ours(self) -> bool:
        return self._identity is not None and self._look() == self._identity

    def close(self) -> None:
        if self.is_ours:
            os.close(self.number)
        self._identity = None


def _moved_up(number: int) -> int:
    """Duplicate to a high number, so that the program's descriptors have the same numbers as without us."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    first = 1024 if soft == resource.RLIM_INFINITY else min(soft, 1024)
    try:
        moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, max(3, first - 64))
    except OSError:
        return number
    os.close(number)
    return moved


class Listener:
    """Answers `attach`, `detach` and `status` for this process until close()."""

    def __init__(self, script: str) -> None:
        self.process = os.getpid()
        self.script = script
        self._socket = control_socket.bind(self.process)
        self._listening = _Descriptor(os.dup(self._socket.fileno()))
        self._socket.close()
        self._socket = socket.socket(fileno=self._listening.number)
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._bell, self._bell_rope = _Descriptor(reading), _Descriptor(writing)
        self._clients: dict[int, tuple[socket.socket, _Descriptor]] = {}
        self._recorder: Recorder | None = None
        self._owner = 0
        self._began = 0.0
        self._changes: deque[RecorderState] = deque()
        self._state = _PHASES[RecorderState.OFF]
        self._steps_before = 0
        self._files: list[dict[str, Any]] = []
        self._closing = self._must_give_way = False
        self._gave_way = threading.Event()
        self._ended = _thread.allocate_lock()
        self._give_up_end = process_end.call_then(self.close)

    # ---- called on the program's threads ----

    def start(self) -> None:
        """Start the thread. It blocks all signals, and so do threads that it starts."""
        faults = {getattr(signal, name) for name in _FAULTS}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
        try:
            self._ended.acquire()
            _thread.start_new_thread(self._serve, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def close(self) -> None:
        """End an open window and remove the socket. Does nothing in a forked child, or when called twice."""
        global _listener
        if os.getpid() != self.process or self._closing:
            return
        self._closing = True
        self._give_up_end()
        control_socket.remove(self.process)
        if self._wake():
            self._ended.acquire(timeout=_SECONDS_TO_END)
        recorder = self._recorder
        if recorder is not None and recorder.is_recording:  # the thread could not be woken
            with contextlib.suppress(LabError):
                recorder.stop_capture()
        if _listener is self:
            _listener = None

    def forget(self) -> None:
        """In a forked child: close everything, so that clients do not confuse it with its parent."""
        with contextlib.suppress(OSError):
            self._socket.detach()
        for descriptor in (self._listening, self._bell, self._bell_rope):
            descriptor.close()
        for connection, descriptor in self._clients.values():
            connection.detach()
            descriptor.close()
        self._clients = {}

    def _phase_changed(self, phase: RecorderState) -> None:
        self._changes.append(phase)
        self._wake()

    def _give_way(self) -> None:
        """The program starts its own recording, which takes precedence."""
        self._must_give_way = True
        if self._wake():
            self._gave_way.wait(_SECONDS_TO_END)

    def _wake(self) -> bool:
        """Wake the thread. False: the program closed the descriptors that it waits for."""
        if not self._bell_rope.is_ours or os.getpid() != self.process:
            return False
        with contextlib.suppress(BlockingIOError):  # a wake-up is pending already
            os.write(self._bell_rope.number, b"!")
        return True

    # ---- called on our own thread ----

    def _serve(self) -> None:
        try:
            with contextlib.suppress(OSError):
                name = f"/proc/self/task/{threading.get_native_id()}/comm"
                with open(name, "w") as file:
                    file.write("plab-live")
            while not self._closing and self._serve_once():
                pass
            self._finish("the program ended")
        except Exception as error:  # our failures must not affect the program
            self._send_to_owner({"event": "failed", "why": f"the recorder in the process failed: {error!r}"})
        finally:
            if self._recorder is not None and self._recorder.is_recording:
                with contextlib.suppress(Exception):
                    self._recorder.stop_capture()
            for number in list(self._clients):
                self._drop(number)
            if self._listening.is_ours:
                self._socket.close()
            else:
                self._socket.detach()
            self._ended.release()

    def _serve_once(self) -> bool:
        """Wait for one event and handle it. False: the program closed our descriptors."""
        poll = select.poll()
        for number in (self._listening.number, self._bell.number, *self._clients):
            poll.register(number, select.POLLIN)
        happened = [number for number, _ in poll.poll()]
        if not self._listening.is_ours or not self._bell.is_ours:
            return False
        if self._bell.number in happened:
            with contextlib.suppress(BlockingIOError):
                os.read(self._bell.number, 4096)
            self._follow_changes()
        if self._listening.number in happened and not self._closing:
            self._accept()
        for number in happened:
            if number in self._clients and not self._closing:
                self._read_request(number)
        return True

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return
        _, user = control_socket.peer(connection)
        if user not in (os.geteuid(), 0) or len(self._clients) >= _MOST_CLIENTS:
            connection.close()
            return
        descriptor = _Descriptor(os.dup(connection.fileno()))
        connection.close()
        connection = socket.socket(fileno=descriptor.number)
        connection.setblocking(False)
        self._clients[descriptor.number] = (connection, descriptor)

    def _read_request(self, number: int) -> None:
        connection, descriptor = self._clients[number]
        if not descriptor.is_ours:
            self._drop(number)
            return
        try:
            message = control_socket.receive(connection)
        except BlockingIOError:
            return
        except (ValueError, OSError):
            self._send(number, {"event": "refused", "exit_code": 2, "why": "expected one JSON object"})
            message = None
        if message is None:
            self._drop(number)
            return
        what = message.pop("do", None)
        if what == "status":
            self._send(number, self._status())
        elif what == "detach":
            self._detach(number)
        elif what == "attach":
            self._attach(number, message)
        else:
            why = f"expected attach, detach or status, not {what!r}"
            self._send(number, {"event": "refused", "exit_code": 2, "why": why})

    def _attach(self, number: int, message: dict[str, Any]) -> None:
        try:
            if self._recorder is not None:
                since = time.monotonic() - self._began
                raise LabError(
                    f"process {self.process} is being recorded by another attach, since {since:.0f} s; "
                    f"profiling-lab detach {self.process} ends that"
                )
            request = Request.of(message)
            _wait_for_import_of_torch()
            self._must_give_way = False
            self._gave_way.clear()
            self._changes.clear()
            recorder = Recorder(
                request.path,
                overwrite=request.overwrite,
                script=self.script,
                schedule=request.schedule(),
                sample_hz=request.sample_hz,
                most_bytes=request.most_bytes,
                stacks=request.stacks,
                nvtx=request.nvtx,
                source=request.source,
                # Never record CUDA graphs as a whole: CUPTI crashes when an older graph is replayed.
                graph_nodes=True,
                on_phase=self._phase_changed,
                give_way=self._give_way,
            )
            request.check_spool(recorder.spool_path)
            self._recorder, self._owner, self._began = recorder, number, time.monotonic()
            self._state = _PHASES[RecorderState.OFF]
            recorder.start()
        except Exception as error:
            if self._recorder is not None and not self._recorder.is_recording:
                self._recorder, self._owner = None, 0
            known = isinstance(error, LabError)
            code = error.exit_code if isinstance(error, LabError) else 1
            why = str(error) if known else f"the recording could not be started: {error!r}"
            self._send(number, {"event": "refused", "exit_code": code, "why": why})
            return
        self._send(number, {"event": "started", "spool": str(recorder.spool_path)})
        self._follow_changes()

    def _detach(self, number: int) -> None:
        if self._recorder is None:
            why = f"process {self.process} is not being recorded"
            self._send(number, {"event": "refused", "exit_code": 2, "why": why})
            return
        path = str(self._recorder.path)
        mine = number == self._owner
        self._finish("detached")
        if not mine:
            self._send(number, {"event": "detached", "path": path})

    def _follow_changes(self) -> None:
        while self._changes and self._recorder is not None:
            phase = self._changes.popleft()
            was_recording = self._state == _PHASES[RecorderState.RECORD]
            self._state = _PHASES[phase]
            if phase is RecorderState.OFF and was_recording:
                self._finish("")
                return
            if phase is not RecorderState.OFF:
                self._send_to_owner({"event": self._state, "steps": self._recorder.steps})
        if self._must_give_way and self._recorder is not None:
            self._finish("the program started its own recording")

    def _finish(self, why: str) -> None:
        """End the window, if there is one, and hand the capture to its client."""
        recorder = self._recorder
        if recorder is None:
            return
        try:
            meta, seconds = recorder.stop_capture()
        except LabError as error:
            self._send_to_owner({"event": "failed", "why": str(error)})
            meta, seconds = {}, 0.0
        if meta:
            self._steps_before += recorder.steps
            self._files.append({"path": str(recorder.path), "windows": recorder.windows})
            self._send_to_owner(
                {
                    "event": "finished",
                    "why": why,
                    "meta": {name: text for name, text in meta.items() if is_in_the_meta_table(name)},
                    "reasons": recorder.reasons,
                    "seconds": seconds,
                    "steps": recorder.steps,
                    "windows": recorder.windows,
                }
            )
        self._recorder, self._owner, self._state = None, 0, _PHASES[RecorderState.OFF]
        self._gave_way.set()

    def _status(self) -> dict[str, Any]:
        recorder = self._recorder
        return {
            "event": "status",
            "protocol": PROTOCOL,
            "script": self.script,
            "state": "dormant" if recorder is None else self._state,
            "steps": self._steps_before + (recorder.steps if recorder is not None else 0),
            "steps_now": recorder.steps if recorder is not None else 0,
            "path": str(recorder.path) if recorder is not None else "",
            "files": self._files[-100:],
        }

    def _send_to_owner(self, message: dict[str, Any]) -> None:
        if self._owner:
            self._send(self._owner, message)

    def _send(self, number: int, message: dict[str, Any]) -> None:
        """Send an event. A client that does not read is dropped, because this thread never waits for
        clients.
        """
        connection, descriptor = self._clients.get(number, (None, None))
        if connection is None or descriptor is None:
            return
        try:
            if not descriptor.is_ours:
                raise OSError("closed by the program")
            control_socket.send(connection, message)
        except OSError:
            self._drop(number)

    def _drop(self, number: int) -> None:
        connection, descriptor = self._clients.pop(number)
        if descriptor.is_ours:
            connection.close()
        else:
            connection.detach()
        if number == self._owner:
            self._owner = 0
            self._finish("the attach command is gone")


def _wait_for_import_of_torch() -> None:
    """While the program runs `import torch`, sys.modules has an incomplete module."""
    torch = sys.modules.get("torch")
    if torch is not None and getattr(getattr(torch, "__spec__", None), "_initializing", False):
        with contextlib.suppress(Exception):  # the program sees the error of its own import
            __import__("torch")


_listener: Listener | None = None


def listen(script: str = "") -> Listener:
    """Let `profiling-lab attach` record this process, until it ends.

    May be called once in each process; a forked child must call it again. `script` is the name that
    `status` shows. Raises LabError or OSError if the private socket cannot be created.
    """
    global _listener
    if _listener is not None and _listener.process == os.getpid():
        return _listener
    listener = Listener(script or os.path.basename(sys.argv[0] if sys.argv else "") or "python")
    _expect_nvtx()
    listener.start()
    _listener = listener
    return listener


def _expect_nvtx() -> None:
    """A library initialises NVTX once, at its first range, which is long before the first window."""
    from profiling_lab import _recorder

    if other_profilers.foreign_nvtx_injection(_recorder.__file__) is None:
        os.environ[other_profilers.NVTX_VARIABLE] = _recorder.__file__
        _recorder.expect_nvtx()


def _after_fork() -> None:
    global _listener
    if _listener is not None:
        _listener.forget()
        _listener = None


os.register_at_fork(after_in_child=_after_fork)
