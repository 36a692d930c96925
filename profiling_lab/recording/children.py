# SPDX-License-Identifier: Apache-2.0
"""Child processes of a recorded program: each one with GPU work records itself, with the inherited plan.

The parent puts a Plan into the environment (offer). A child's Python reads it at start-up
(inherit/sitecustomize.py), and calls `begin` when it first uses the GPU. Each child writes its result into a
folder of reports, which the parent reads at the end (collect).

This uses a folder on PYTHONPATH instead of a .pth file in site-packages: it works wherever the package is
installed, and a Python that is not recorded runs none of this code. Children are not recorded if they run
with -E, -I or -S, with another PYTHONPATH or environment, or with a Python without profiling_lab.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from profiling_lab.errors import LabError
from profiling_lab.recording import output_name, process_end
from profiling_lab.recording.rank_in_job import rank_in_job
from profiling_lab.recording.recorder import Recorder
from profiling_lab.recording.schedule import Schedule

_WRITING_S = 120.0  # how long to wait for children that still write their file when the parent has ended

RECORDING, CAPTURED, WRITING, FINISHED = "recording", "captured", "writing", "finished"
FAILED, REFUSED, KILLED, RECOVERED = "failed", "refused", "killed", "recovered"
_WORK = tuple(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"))


@dataclass(frozen=True, slots=True)
class Plan:
    """How children record. output: the file name template; "": named after each child's script."""

    folder: str
    reports: str = ""
    output: str = ""
    date: str = ""
    host: str = ""
    program: str = "python"
    overwrite: bool = False
    stacks: bool = True
    nvtx: bool = True
    graph_nodes: bool = False
    memory: bool = False
    energy: bool = False
    counters: bool = False
    work: bool = False
    work_step: int | None = None
    sample_hz: int = 0
    source: bool = True
    most_bytes: int = 0
    schedule: dict[str, object] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Child:
    """The result of one process. `state` is one of the constants above; FAILED and REFUSED have a `why`."""

    pid: int
    born: str
    path: str
    state: str
    kernels: int = 0
    dropped: int = 0
    reasons: dict[str, str] = field(default_factory=dict)
    why: str = ""

    @property
    def spool(self) -> Path:
        return Path(f"{self.path}.spool")

    @property
    def is_alive(self) -> bool:
        return bool(self.born) and _born(self.pid) == self.born


def begin(text: str, uses_gpu: bool) -> None:
    """Record this process from now to its end, as the plan says. Failures are reported, not raised.

    uses_gpu: the process certainly uses the GPU, so a recording without GPU activity must say why.
    """
    from profiling_lab import _recorder

    plan = Plan.from_json(text)
    if _recorder.recording():  # the program records itself
        return
    if plan.host == socket.gethostname() and not Path(plan.reports).is_dir():
        return  # the parent has ended: processes that a daemon starts later are not recorded
    me = Child(os.getpid(), _born(os.getpid()), "", RECORDING)
    try:
        path = _claim(plan)
        me = replace(me, path=str(path))
        recorder = Recorder(
            path,
            overwrite=plan.overwrite,
            stacks=plan.stacks,
            nvtx=plan.nvtx,
            graph_nodes=plan.graph_nodes,
            memory=plan.memory,
            energy=plan.energy,
            counters=plan.counters,
            work=plan.work,
            work_step=plan.work_step,
            sample_hz=plan.sample_hz,
            source=plan.source,
            most_bytes=plan.most_bytes,
            schedule=Schedule(**plan.schedule),  # type: ignore[arg-type]
            even_if_idle=bool(plan.schedule),  # an empty file says that the windows missed the work
        )
        recorder.start()
    except Exception as error:
        _report(plan, replace(me, state=REFUSED, why=str(error)))
        return
    _report(plan, me)
    process_end.call_then(lambda: _finish(plan, recorder, me, uses_gpu))


def _finish(plan: Plan, recorder: Recorder, me: Child, uses_gpu: bool) -> None:
    if not recorder.is_recording:  # a forked child, or the program stopped it
        return
    from profiling_lab import _recorder

    _recorder.leave_out_this_thread()  # sample the program, not the recorder's work at its end
    try:
        if _dies_of_ctrl_c() and Path(plan.reports).is_dir():
            recorder.stop_capture()
            _report(plan, replace(me, state=CAPTURED))
            return
        _report(plan, replace(me, state=WRITING))
        summary = recorder.stop()
    except Exception as error:
        _report(plan, replace(me, state=FAILED, why=str(error)))
        return
    if not recorder.path.is_file():  # no GPU work
        if uses_gpu and "gpu" in summary.reasons:
            _report(plan, replace(me, state=REFUSED, why=summary.reasons["gpu"]))
        else:
            _forget(plan, me)
        return
    _report(
        plan,
        replace(
            me,
            state=FINISHED,
            kernels=summary.kernels,
            dropped=summary.dropped,
            reasons=dict(summary.reasons),
        ),
    )


def _dies_of_ctrl_c() -> bool:
    """Whether Python is about to end by SIGINT, a state that the imports of a conversion would reset."""
    return isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)


def _claim(plan: Plan) -> Path:
    """A file name that no other process of this recording has, and that does not overwrite a file."""
    place = rank_in_job()
    if plan.output:
        path = Path(plan.folder, output_name.expand(plan.output, place, plan.date))
    else:
        script = sys.argv[0] if sys.argv else ""
        stem = plan.program if script in ("", "-", "-c", "-m") else Path(script).stem
        path = Path(plan.folder, output_name.with_rank(Path(f"{stem}.sqlite"), place))
    number, name = 1, path
    while not _is_ours(plan, name):
        number += 1
        name = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return name


def _is_ours(plan: Plan, path: Path) -> bool:
    if not plan.overwrite and output_name.is_taken(path):
        return False
    try:
        return claim(plan.reports, path)
    except OSError:  # another machine: there are no reports, and names differ by rank
        return not os.path.lexists(f"{path}.spool")


def claim(reports: str, path: Path) -> bool:
    """Claim a file name for one process of this recording. False if another has it."""
    try:
        os.close(os.open(Path(reports, f"{path.name}.claim"), os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


def _report(plan: Plan, child: Child) -> None:
    target = _report_file(plan, child)
    temporary = target.with_suffix(".tmp")
    try:
        temporary.write_text(json.dumps(asdict(child)))
        os.replace(temporary, target)
    except OSError:  # the parent has ended, or is on another machine
        if child.state in (FINISHED, FAILED, REFUSED):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                said = f"recorded {child.path}" if child.state == FINISHED else f"not recorded: {child.why}"
                sys.stderr.write(f"profiling-lab: pid {child.pid}: {said}\n")


def _forget(plan: Plan, child: Child) -> None:
    with contextlib.suppress(OSError):
        _report_file(plan, child).unlink()


def _report_file(plan: Plan, child: Child) -> Path:
    return Path(plan.reports, f"{child.pid}-{child.born}.json")


def reported(reports: str) -> list[Child]:
    """Every child that used the GPU, by file name."""
    found = []
    for file in Path(reports).glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(Child(**json.loads(file.read_text())))
    return sorted(found, key=lambda child: (child.path, child.pid))


def collect(reports: str, say: Callable[[str], None]) -> list[Child]:
    """The results of all children. A capture without a file (the child was killed) is converted here."""
    _wait_for_writers(reports, say)
    found = [_recovered(child) for child in reported(reports)]
    return [child for child in found if child is not None]


def _wait_for_writers(reports: str, say: Callable[[str], None]) -> None:
    def writers() -> list[Child]:
        return [one for one in reported(reports) if one.state == WRITING and one.is_alive]

    end = time.monotonic() + _WRITING_S
    waiting = writers()
    if waiting:
        say(f"waiting for {', '.join(f'{os.path.basename(one.path)} (pid {one.pid})' for one in waiting)}")
    while writers() and time.monotonic() < end:
        time.sleep(0.1)


def _recovered(child: Child) -> Child | None:
    """Convert the child's capture. None: it had no GPU work."""
    if child.state not in (RECORDING, CAPTURED, WRITING) or (child.is_alive and child.state != CAPTURED):
        return child
    from profiling_lab.recording.convert import convert

    try:
        rows = convert(child.spool, child.path).rows
        child.spool.unlink()
        if not any(rows.get(table) for table in _WORK):
            os.unlink(child.path)
            return None
    except (LabError, OSError) as error:
        return replace(child, state=KILLED, why=str(error))
    state = FINISHED if child.state == CAPTURED else RECOVERED
    return replace(child, state=state, kernels=rows.get(_WORK[0], 0))


def _born(pid: int) -> str:
    """The process's start time in kernel ticks, because a pid may be reused. "" if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    facts = text.rpartition(")")[2].split()
    return "" if facts[0] in "ZX" else facts[19]
