# SPDX-License-Identifier: Apache-2.0
"""Runs of a program on several GPUs for recording scripts: a fork of this process for each rank, and small
copies of what they recorded. torch is imported once; this process must not use CUDA itself.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
KEPT_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "user_annotation")
STEP = "ProfilerStep#"


def on_ranks(work: Callable[[int], object], ranks: int = 2, limit_s: float = LIMIT_S) -> str:
    """Run work(rank) in a fork for each rank, with torchrun's variables set. Returns what they print.

    Raises RuntimeError with it if a rank fails, or has not ended in time: then all are ended.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    sys.stdout.flush()
    with tempfile.TemporaryFile() as printed:
        running = {_fork(work, rank, ranks, port, printed.fileno()): rank for rank in range(ranks)}
        failed, until = "", time.monotonic() + limit_s
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in running:
                rank = running.pop(pid)
                if status:
                    failed = failed or f"rank {rank}: wait status {status}"
                    until = min(until, time.monotonic() + 5)  # the others may say why
            elif time.monotonic() > until:
                failed = failed or f"not ended after {limit_s:g} s"
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        printed.seek(0)
        text = printed.read().decode(errors="replace")
    if failed:
        raise RuntimeError(f"{failed}: {text[-3000:]}")
    return text


def _fork(work: Callable[[int], object], rank: int, ranks: int, port: str, out: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(out, number)
            setattr(sys, name, os.fdopen(number, "w", buffering=1, closefd=False))
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}
        code = int(work(rank) or 0)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def record(folder: Path, program: Path, options: Sequence[str] = (), arguments: Sequence[str] = ()) -> str:
    """Record all ranks of a program into a new folder: run.rank0.sqlite, ... Returns what they print."""
    from profiling_lab.cli import main as profiling_lab

    folder.mkdir(parents=True)

    def rank(_: int) -> int:
        os.chdir(folder)
        return profiling_lab(["record", *options, "-o", "run.sqlite", str(program), *arguments])

    return on_ranks(rank)


def run(program: Path, arguments: Sequence[str], folder: Path) -> str:
    """Run all ranks of a program in a folder, without recording. Returns what they print."""
    folder.mkdir(parents=True, exist_ok=True)

    def rank(_: int) -> None:
        os.chdir(folder)
        sys.argv[:] = [str(program), *arguments]
        runpy.run_path(str(program), run_name="__main__")

    return on_ranks(rank)


def small_copies(
    source: Path, target: Path, strip: Sequence[Path], name: str = "", samples: bool = False
) -> list[int]:
    """Reduced copies of the recordings or traces in a folder, packed; their sizes. strip: folders of the
    program; name: instead of `run` in file names; samples: those of Python stacks are kept.
    """
    target.mkdir(parents=True, exist_ok=True)
    sizes = []
    for path in sorted(source.iterdir()):
        if path.suffix == ".sqlite":
            small = target / f"{path.name.replace('run.', f'{name}.', 1) if name else path.name}.gz"
            small.write_bytes(gzip.compress(_reduced(path, strip, samples), 9, mtime=0))
        elif path.name.endswith(".json.gz"):
            small = target / path.name
            small.write_bytes(gzip.compress(small_trace(gzip.decompress(path.read_bytes())), 9, mtime=0))
        else:
            continue
        sizes.append(small.stat().st_size)
    return sizes


def _reduced(path: Path, strip: Sequence[Path], samples: bool) -> bytes:
    spec = importlib.util.spec_from_file_location("reduce_trace", REPO / "benchmarks" / "reduce_trace.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "small.sqlite"
        folders = dict.fromkeys(str(each) for one in strip for each in (one, os.path.realpath(one)))
        module.reduce(path, target, (*folders, str(REPO)), samples=samples)
        return target.read_bytes()


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
