# SPDX-License-Identifier: Apache-2.0
"""What both assembling scripts share: small copies of recordings, what commands print of them, and what the
grader says of worked answers.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import io
import json
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from profiling_lab.exercises import answers, workspace
from profiling_lab.exercises.exercise import CheckStatus, Exercise

REPO = Path(__file__).resolve().parents[2]
sys.path += [str(REPO / "tools"), str(REPO / "benchmarks"), str(REPO / "benchmarks" / "ranks")]

KEPT_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "user_annotation")
STEP = "ProfilerStep#"


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = found
    spec.loader.exec_module(found)
    return found


def reduced(source: Path, target: Path, *, samples: bool = False, last_steps: int = 0) -> None:
    """A small copy of a recording, without where it was made. last_steps: only these; 0: all.

    A recording of a whole run begins with steps that make communicators, load kernels and grow memory.
    """
    reduce_trace = module(REPO / "benchmarks" / "reduce_trace.py")
    with tempfile.TemporaryDirectory() as folder:
        part = source
        if last_steps:
            part = Path(folder) / source.name
            module(REPO / "benchmarks" / "ranks" / "reduce.py").cut(source, part, last_steps, rest=False)
        target.parent.mkdir(parents=True, exist_ok=True)
        reduce_trace.reduce(part, target, tuple(folders_of(source)), samples=samples)


def folders_of(recording: Path) -> list[str]:
    """Where the program lay when it was recorded."""
    with sqlite3.connect(recording) as file:
        meta = dict(file.execute("SELECT name, value FROM PYREC_META"))
        script = f"/{Path(str(meta.get('script', 'no program'))).name}"
        frames = "SELECT DISTINCT s.value FROM PYREC_FRAME f JOIN StringIds s ON s.id = f.fileId"
        found = [str(name) for (name,) in file.execute(frames) if str(name).endswith(script)]
    file.close()
    return [name.removesuffix(script) for name in found]


def packed(source: Path, target: Path, **how: Any) -> int:
    """The same, compressed. Returns its size in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.sqlite"
        reduced(source, small, **how)
        return written(target, small.read_bytes())


def written(target: Path, data: bytes) -> int:
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.write_bytes(gzip.compress(data, 9, mtime=0))


def small_trace(text: bytes) -> bytes:
    """Of torch.profiler's JSON what happens on the GPU, the calls of it, and the steps."""
    data = json.loads(text)
    data["traceEvents"] = [
        event
        for event in data["traceEvents"]
        if event.get("cat") in KEPT_EVENTS
        and (event["cat"] != "user_annotation" or str(event.get("name")).startswith(STEP))
    ]
    kept = ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "displayTimeUnit")
    small = {name: data[name] for name in (*kept, "traceEvents") if name in data}
    return json.dumps(small, separators=(",", ":")).encode()


def shown(folder: Path, *words: str) -> str:
    """A command and what it prints, in a folder: words that are files of it are named as from there."""
    from profiling_lab.cli import main as profiling_lab

    text = io.StringIO()
    real = [str(folder / word) if (folder / word).exists() else word for word in words]
    jobs = ("--jobs", "1") if words[0] in ("ranks", "collectives") else ()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        profiling_lab([*real, *jobs])
    return f"$ profiling-lab {' '.join(words)}\n{text.getvalue().rstrip()}\n".replace(f"{folder}/", "")


def graded(exercise: Exercise, target: Path, more: dict[str, object], extra: Any = None) -> list[str]:
    """What the grader says of the worked answers with these recordings; "FAILED" begins what is wrong.

    more: answers that name other recordings; extra: further checks, called with folder and answers.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        workspace.copy_starter(exercise, copy)
        shutil.copytree(target / workspace.RECORDED, copy / workspace.RECORDED, dirs_exist_ok=True)
        own = {"trace": exercise.recording, **more}
        given = answers.read(target / workspace.SOLUTIONS).replaced(own)
        checks = [*exercise.findings(copy, given), *(extra(copy, given) if extra else ())]
        empty = exercise.findings(copy, answers.read(copy).replaced({"trace": exercise.recording}))
    said = [
        f"{'FAILED ' if c.status is CheckStatus.FAILED else ''}{c.name}: {c.status.value}: {c.message}"
        for c in checks
    ]
    if not any(check.status is CheckStatus.FAILED for check in empty):
        said.append("FAILED an empty answer file passes")
    return said
