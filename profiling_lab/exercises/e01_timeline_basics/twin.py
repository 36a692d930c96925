# SPDX-License-Identifier: Apache-2.0
"""Grade the CUDA C++ twin of E01: improved.cu computes what baseline.cu computes, and faster.

Both are compiled as libraries, and the grader calls and times their `simulate` itself, on new random plates:
what a program prints about itself does not count. Everything is inside of the timed call: memory, copies,
kernels. The reference is computed here in double precision.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from profiling_lab.exercises.exercise import GradedCheck, Need, failed, not_checked, passed
from profiling_lab.exercises.program_repair import Goal, judged

NAME = "improved.cu"
GOAL = Goal(faster=30.0, steps=10)
TURNS = 5
SMALL, LARGE = 65, 4096  # cells of a side; a size that no block divides, and the size of main()
ROUNDING = 1e-5
LIMIT_S = 120

F32: TypeAlias = npt.NDArray[np.float32]
Build: TypeAlias = Callable[[Path, Path], None]
Result: TypeAlias = "tuple[F32, F32, float]"
"""the plate, the changes, and the seconds that it took"""


class TwinError(Exception):
    """The program cannot be compiled or ends with an error; the message is for the learner."""


def checks(starter: Path, repaired: Path) -> list[GradedCheck]:
    """The checks "cuda result" and "cuda speed"; both are optional, for those who have nvcc."""
    if not repaired.is_file() or repaired.read_bytes() == (starter.parent / NAME).read_bytes():
        return [not_checked("cuda result", f"{NAME} is unchanged: this part is for those who write CUDA C++")]
    if missing := Need.NVCC.missing() or Need.GPU.missing():
        return [not_checked("cuda result", missing)]
    return judge(starter, repaired, compiled)


def judge(
    starter: Path, repaired: Path, build: Build, sizes: tuple[int, int] = (SMALL, LARGE)
) -> list[GradedCheck]:
    with tempfile.TemporaryDirectory() as folder:
        libraries = [Path(folder) / f"{source.stem}.so" for source in (starter, repaired)]
        try:
            for source, library in zip((starter, repaired), libraries, strict=True):
                build(source, library)
            runs = called([str(library) for library in libraries], sizes)
        except TwinError as error:
            return [failed("cuda result", str(error))]
    for old, new, exact in runs:
        if wrong := difference(old, new, exact):
            reason = "the speed does not matter while the result differs"
            return [failed("cuda result", wrong), not_checked("cuda speed", reason)]
    timed = runs[2:]  # the first plates load the code and warm up
    ratios = [old[2] / new[2] for old, new, _ in timed]
    verdict = judged(ratios, [[old[2], new[2]] for old, new, _ in timed], GOAL)
    return [
        passed("cuda result", "plates and changes agree with double precision"),
        GradedCheck("cuda speed", verdict.status, verdict.message.replace("step", "round")),
    ]


def compiled(source: Path, library: Path) -> None:
    """With nvcc, for the GPU that is here."""
    options = ("-O3", "-std=c++17", "-arch=native", "-shared", "-Xcompiler", "-fPIC")
    done = subprocess.run(("nvcc", *options, "-o", library, source), capture_output=True, text=True)
    if done.returncode:
        raise TwinError(f"nvcc does not compile {source.name}: {done.stderr.strip().splitlines()[0]}")


def reference(plate: F32, rounds: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The plate after `rounds` rounds and the changes, in double precision."""
    now, changes = plate.astype(np.float64), []
    for _ in range(rounds):
        after = now.copy()
        after[1:-1, 1:-1] = 0.25 * (now[1:-1, :-2] + now[1:-1, 2:] + now[:-2, 1:-1] + now[2:, 1:-1])
        changes.append(float(np.abs(after - now).max()))
        now = after
    return now, np.array(changes)


def difference(old: Result, new: Result, exact: tuple[npt.NDArray[np.float64], ...] | None) -> str:
    """Small plates are compared with the reference, large ones with baseline.cu."""
    right: tuple[npt.NDArray[Any], ...] = exact or old[:2]
    for name, given, expected in zip(("the plate", "the changes"), new[:2], right, strict=True):
        distance = float(np.abs(given.astype(np.float64) - expected.astype(np.float64)).max())
        if not distance <= ROUNDING * float(np.abs(expected).max()):  # written so that NaN fails
            return f"{name} of {len(new[0])} x {len(new[0])} cells differs by {distance:.1e}"
    return ""


Turn: TypeAlias = "tuple[Result, Result, tuple[npt.NDArray[np.float64], ...] | None]"


def called(libraries: list[str], sizes: tuple[int, int]) -> list[Turn]:
    """Both libraries on the same plates, in a process of its own: a crash there is no crash here."""
    reading, writing = multiprocessing.get_context("spawn").Pipe(duplex=False)
    child = multiprocessing.get_context("spawn").Process(target=_child, args=(writing, libraries, sizes))
    child.start()
    writing.close()
    try:
        if not reading.poll(LIMIT_S):
            raise TwinError(f"simulate did not return within {LIMIT_S} s")
        told = reading.recv()
    except EOFError:
        child.join()
        raise TwinError(f"simulate crashed (exit code {child.exitcode})") from None
    finally:
        child.kill()
        child.join()
    if isinstance(told, str):
        raise TwinError(told)
    found: list[Turn] = told
    return found


def _child(pipe: object, libraries: list[str], sizes: tuple[int, int]) -> None:
    send = pipe.send  # type: ignore[attr-defined]
    try:
        loaded = [ctypes.CDLL(library).simulate for library in libraries]
        turns: list[Turn] = []
        for turn in range(2 + TURNS):
            size, rounds = (sizes[0], 7 + turn) if turn < 2 else (sizes[1], GOAL.steps)
            plate = np.random.default_rng(secrets.randbits(64)).random((size, size), dtype=np.float32)
            old, new = (_simulate(simulate, plate, rounds) for simulate in loaded)
            exact = reference(plate, rounds) if turn < 2 else None
            turns.append((_first(old, turn), _first(new, turn), exact))
        send(turns)
    except (OSError, AttributeError, TwinError) as error:
        send(f"{Path(libraries[1]).stem}.cu: {error}")


def _first(result: Result, turn: int) -> Result:
    """All of a small plate; of a large one every 61st cell of a row, which no loop can guess."""
    return result if turn < 2 else (np.ascontiguousarray(result[0][:, 7::61]), result[1], result[2])


def _simulate(simulate: Callable[..., int], plate: F32, rounds: int) -> Result:
    mine, changes = plate.copy(), np.full(rounds, np.nan, dtype=np.float32)
    floats = ctypes.POINTER(ctypes.c_float)
    begin = time.perf_counter()
    error = simulate(mine.ctypes.data_as(floats), len(mine), rounds, changes.ctypes.data_as(floats))
    took_s = time.perf_counter() - begin
    if error:
        raise TwinError(f"simulate returned the CUDA error {error}")
    return mine, changes, took_s
