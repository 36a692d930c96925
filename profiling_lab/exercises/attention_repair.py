# SPDX-License-Identifier: Apache-2.0
"""Grade a repaired CUDA source: the same results as double precision, and faster than the exercise's own one.

Both sources are compiled and called through their C function, in a process of its own: a kernel that writes
where it must not ends that process alone. Inputs are new each time and change between calls, so hard-coded
and cached results fail. Without a GPU the results are checked on the CPU, and the time is not.
"""

from __future__ import annotations

import json
import secrets
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from profiling_lab.exercises import child_process, cuda_build
from profiling_lab.exercises.cuda_build import BuildError
from profiling_lab.exercises.exercise import GradedCheck, Need, failed, not_checked, passed

ROUNDS, CALLS = 5, 10
FP32 = 2.0**-23
GUARD, CANARY = 256, -12345.0
LATER = "the speed does not matter while the result differs"


def checks(slug: str, starter: Path, repaired: Path, faster: float) -> list[GradedCheck]:
    """The checks "result" and "speed"."""
    if not repaired.is_file():
        return _stopped(f"there is no {repaired.name} in this folder")
    if repaired.read_bytes() == starter.read_bytes():
        return _stopped(f"{repaired.name} is unchanged: nothing is repaired yet")
    no_gpu, no_nvcc = Need.GPU.missing(), Need.NVCC.missing()
    with tempfile.TemporaryDirectory() as folder:
        before, after = (Path(folder) / f"{name}.so" for name in ("before", "after"))
        if not no_gpu and no_nvcc:
            return [not_checked(name, no_nvcc) for name in ("result", "speed")]
        build = cuda_build.for_cpu if no_gpu else cuda_build.for_gpu
        try:
            build(starter, before)
        except BuildError as error:
            return [
                not_checked(name, f"{no_gpu}; {error}" if no_gpu else str(error))
                for name in ("result", "speed")
            ]
        try:
            build(repaired, after)
        except BuildError as error:
            if no_gpu:
                reason = f"{no_gpu}, and the stand-in of a GPU on the CPU cannot compile it: {error}"
                return [not_checked(name, reason) for name in ("result", "speed")]
            return _stopped(str(error))
        arguments = slug, str(before), str(after), "cpu" if no_gpu else "cuda"
        try:
            found = child_process.answer_of("attention_repair", *arguments)
        except child_process.ChildError as error:
            return _stopped(str(error))
    if wrong := found["wrong"]:
        return _stopped(wrong)
    where = "on the CPU" if no_gpu else "on this GPU"
    result = passed("result", f"agrees with double precision, on new random data {where}")
    if no_gpu:
        return [result, not_checked("speed", f"{no_gpu}, and a time on the CPU says nothing about the GPU")]
    return [result, judged(found["before_ms"], found["after_ms"], faster)]


def _stopped(why: str) -> list[GradedCheck]:
    return [failed("result", why), not_checked("speed", LATER)]


def judged(before_ms: list[float], after_ms: list[float], faster: float) -> GradedCheck:
    """The median of the rounds decides. Rounds are interleaved, so clocks and temperature affect both."""
    gain = statistics.median(old / new for old, new in zip(before_ms, after_ms, strict=True))
    old, new = statistics.median(before_ms), statistics.median(after_ms)
    said = f"{old:.3f} ms per step before, {new:.3f} ms after: {gain:.2f} times"
    return (
        passed("speed", said) if gain >= faster else failed("speed", f"{said}; the goal is {faster:g} times")
    )


def child(slug: str, before: str, after: str, device: str) -> None:
    """In the child: writes what was found as one line of JSON."""
    import ctypes

    from profiling_lab.exercises.attention_cases import CASES

    case = CASES[slug]
    programs = [ctypes.CDLL(path) for path in (before, after)]
    wrong = ""
    for rows, count in case.small:
        wrong = wrong or difference(case, programs, rows, count, device)
    found: dict[str, Any] = {"wrong": wrong}
    if not wrong and device == "cuda":
        found |= race(case, programs)
    sys.stdout.write(json.dumps(found) + "\n")


def difference(case: Any, programs: list[Any], rows: int, count: int, device: str) -> str:
    """Why the second program's results differ from double precision more than rounding explains; empty if
    they do not. It is called twice with the same memory and other data.
    """
    import torch

    shapes = case.outputs(rows, count)
    memory = {
        name: torch.empty(GUARD + _size(shape) + GUARD, device=device) for name, shape in shapes.items()
    }
    work = torch.empty(case.work(rows, count) + GUARD, device=device)
    inputs = case.inputs(rows, count, device, 0)
    at = f"{rows} rows of {count} keys"
    for _ in range(2):
        for mine, new in zip(inputs, case.inputs(rows, count, device, secrets.randbelow(2**31)), strict=True):
            mine.copy_(new)
        kept = [each.clone() for each in inputs]
        exact = case.reference(*(each.double() for each in inputs))
        results = []
        for program in programs:
            for each in (*memory.values(), work):
                each.fill_(CANARY)
            given = [memory[name][GUARD : GUARD + _size(shape)].view(shape) for name, shape in shapes.items()]
            status = _call(program, inputs, given, work, device)
            if status:
                return f"for {at} attend returns the error {status}"
            results.append([each.clone() for each in given])
        for name, old, new in zip(shapes, *results, strict=True):
            right = exact[name].view(shapes[name])
            distance = float((new.double() - right).abs().max())
            bound = 4 * float((old.double() - right).abs().max()) + 16 * FP32 * float(right.abs().max())
            if not distance <= bound:  # written so that NaN fails
                return f"for {at} {name} differs by {distance:.1e}; rounding explains up to {bound:.1e}"
        if any(not torch.equal(a, b) for a, b in zip(kept, inputs, strict=True)):
            return f"for {at} the program changes its inputs"
        ends = [each[:GUARD] for each in memory.values()] + [
            each[-GUARD:] for each in (*memory.values(), work)
        ]
        if any(bool((each != CANARY).any()) for each in ends):
            return f"for {at} the program writes beyond its memory"
    return ""


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for each in shape:
        size *= each
    return size


def _call(program: Any, inputs: Any, outputs: Any, work: Any, device: str) -> int:
    import torch

    from profiling_lab.exercises.attention_cases import call

    status = call(program, inputs, outputs, work)
    if device == "cuda":
        torch.cuda.synchronize()
    return status


def race(case: Any, programs: list[Any]) -> dict[str, Any]:
    """Times of both programs at full size, ms a step, alternately. Each call has another query, and the last
    result of each round must be right.
    """
    import time

    import torch

    from profiling_lab.exercises.attention_cases import call

    rows, count = case.full
    q, keys, values = case.inputs(rows, count, "cuda", secrets.randbelow(2**31))
    outputs = [torch.empty(shape, device="cuda") for shape in case.outputs(rows, count).values()]
    work = torch.empty(case.work(rows, count), device="cuda")
    queries = torch.randn(CALLS, *q.shape, device="cuda")
    times: list[list[float]] = [[], []]
    for program in programs:
        call(program, (q, keys, values), outputs, work)
    for turn in range(ROUNDS):
        queries.neg_()
        values.neg_()
        for index in (0, 1) if turn % 2 else (1, 0):
            for each in outputs:
                each.fill_(CANARY)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for number in range(CALLS):
                q.copy_(queries[number])
                call(programs[index], (q, keys, values), outputs, work)
            torch.cuda.synchronize()
            times[index].append(1e3 * (time.perf_counter() - begin) / CALLS)
            exact = case.reference(q, keys, values)
            for given, (name, right) in zip(outputs, exact.items(), strict=True):
                distance = float((given - right.view(given.shape)).abs().max())
                if not distance <= 1e-3 * max(float(right.abs().max()), 1e-3):
                    return {"wrong": f"at full size {name} differs by {distance:.1e}"}
    return {"before_ms": times[0], "after_ms": times[1]}
