# SPDX-License-Identifier: Apache-2.0
"""Grade repaired CUDA kernels: the same results on data from new seeds, and faster.

The learner's .cu file and the exercise's own are built as shared libraries. Their launchers (extern "C") get
device pointers from here, so the program that prints times has no part in it. Inputs are new for every call
and outputs are filled with NaN before, so a hard-coded result, a result of the call before and a deleted
computation fail; so is what lies around them, and must stay so. Both libraries take turns on the same data.
"""

from __future__ import annotations

import ctypes
import json
import math
import re
import secrets
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from profiling_lab.exercises import child_process, cuda_build
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck, Need, failed, not_checked, passed

ROUNDS = 7
EPSILON = 2.0**-23
LATER = "the speed does not matter while the result differs"
BUSY_CYCLES = 500_000
GUARD = 256
Launchers = Mapping[str, Callable[..., int]]


@dataclass(frozen=True, slots=True)
class Case:
    """The arguments of one call, in the order of the C function."""

    arguments: tuple[Any, ...]
    outputs: tuple[Any, ...]
    """the tensors among the arguments that the call writes"""
    exact: Callable[[], Sequence[Any]]
    """the right outputs in float64"""
    scratch: tuple[Any, ...] = ()
    """the tensors among the arguments that the call may write to, with any values"""


def guarded(*shape: int, device: Any) -> Any:
    """Memory for an output in float32, with more around it that a kernel must not write to."""
    import torch

    size = math.prod(shape)
    return torch.empty(size + 2 * GUARD, device=device)[GUARD : GUARD + size].view(shape)


@dataclass(frozen=True, slots=True)
class Task:
    """One launcher that must become faster."""

    name: str
    make: Callable[[Any, int], Case]
    """a case from a torch.Generator and a size: 0, 1, ... are small and odd, -1 is the one to time"""
    faster: float
    sizes: int = 3
    """how many small sizes there are"""


def checks(starter: Path, repaired: Path, module: str) -> list[GradedCheck]:
    """The checks "result" and "speed"; `module` has the TASKS. Without a GPU the results are checked on the
    CPU.
    """
    if not repaired.is_file():
        return _wrong(f"there is no {repaired.name} in this folder")
    if code(repaired) == code(starter):
        return _wrong(f"{repaired.name} is unchanged: nothing is repaired yet")
    texts = (each.read_text(encoding="utf-8") for each in (starter, repaired))
    return [GradedCheck(name, CheckStatus(status), text) for name, status, text in _graded(*texts, module)]


def _wrong(why: str) -> list[GradedCheck]:
    return [failed("result", why), not_checked("speed", LATER)]


@cache
def _graded(before: str, after: str, module: str) -> list[list[str]]:
    """The checks of two sources: name, status, message. A process judges a pair once."""
    no_gpu, no_nvcc = Need.GPU.missing(), Need.NVCC.missing()
    if not no_gpu and no_nvcc:
        return [[name, CheckStatus.NOT_CHECKED.value, no_nvcc] for name in ("result", "speed")]
    with tempfile.TemporaryDirectory() as name:
        folder, libraries = Path(name), []
        for which, text in (("before", before), ("after", after)):
            source = folder / f"{which}.cu"
            source.write_text(_without_main(text) if no_gpu else text, encoding="utf-8")
            build = cuda_build.for_cpu if no_gpu else cuda_build.for_gpu
            try:
                libraries.append(str(build(source, folder / f"{which}.so")))
            except cuda_build.BuildError as error:
                if no_gpu:
                    why = f"{no_gpu}, and the stand-in of a GPU on the CPU cannot compile it: {error}"
                    return [[each, CheckStatus.NOT_CHECKED.value, why] for each in ("result", "speed")]
                return _plain(_wrong(str(error)))
        return _in_child(module, libraries, "cpu" if no_gpu else "cuda")


def _without_main(text: str) -> str:
    """Kernels and launchers: what comes before the functions of the host."""
    return re.split(r"^(?:static void need|int main)\(", text, maxsplit=1, flags=re.M)[0]


def _plain(found: Sequence[GradedCheck]) -> list[list[str]]:
    return [[each.name, each.status.value, each.message] for each in found]


def _in_child(module: str, libraries: Sequence[str], device: str) -> list[list[str]]:
    try:
        found: list[list[str]] = child_process.answer_of(
            "kernel_repair", module, *libraries, device, what="the kernels have"
        )
    except child_process.ChildError as error:
        return _plain(_wrong(str(error)))
    return found


def child(module: str, before: str, after: str, device: str) -> None:
    """In the child: writes the checks as one line of JSON."""
    tasks = import_module(module).TASKS
    try:
        found = judged(launchers(before, tasks), launchers(after, tasks), tasks, device)
    except LookupError as error:
        found = _wrong(str(error))
    sys.stdout.write(json.dumps(_plain(found)))


def code(path: Path) -> str:
    """A source without comments and blanks: what of a change counts."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S)
    return "".join(text.split())


def launchers(library: str, tasks: Sequence[Task]) -> Launchers:
    """The launchers of a library. Raises LookupError."""
    loaded, found = ctypes.CDLL(library), {}
    for task in tasks:
        try:
            found[task.name] = _launcher(loaded[task.name])
        except AttributeError:
            raise LookupError(f"there is no function {task.name} any more: keep its name") from None
    return found


def _launcher(function: Any) -> Callable[..., int]:
    function.restype = ctypes.c_int

    def call(*arguments: Any) -> int:
        return int(function(*map(_c, arguments)))

    return call


def _c(value: Any) -> Any:
    if isinstance(value, int):
        return ctypes.c_longlong(value)
    if isinstance(value, float):
        return ctypes.c_float(value)
    return ctypes.c_void_p(value.data_ptr())


def judged(before: Launchers, after: Launchers, tasks: Sequence[Task], device: str) -> list[GradedCheck]:
    """The checks, of launchers that are ready. On the CPU only the results are judged."""
    said: list[str] = []
    slow: list[str] = []
    for task in tasks:
        pair = before[task.name], after[task.name]
        try:
            for size in range(task.sizes):  # warms up, too
                _turn(pair, task.make(_generator(device), size), device)
            if device == "cpu":
                continue
            times = []
            for turn in range(ROUNDS):
                times.append(_turn(pair, task.make(_generator(device), -1), device, backwards=turn % 2 == 1))
        except WrongResult as error:
            return _wrong(f"{task.name}: {error}")
        gain = statistics.median(old / new for old, new in times)
        old_us, new_us = (1e3 * statistics.median(each[i] for each in times) for i in (0, 1))
        text = f"{task.name} {old_us:.0f} us before, {new_us:.0f} us now: {gain:.2f} times"
        (said if gain >= task.faster else slow).append(f"{text}; the goal is {task.faster:g} times")
    where = "on the CPU" if device == "cpu" else "on this GPU"
    result = passed("result", f"equal to double precision within rounding, on new random data, {where}")
    if device == "cpu":
        return [result, not_checked("speed", "a time on the CPU says nothing about the GPU")]
    return [result, failed("speed", "; ".join(slow)) if slow else passed("speed", "; ".join(said))]


class WrongResult(Exception):
    """What is wrong with the outputs of the repaired launcher."""


def _generator(device: str) -> Any:
    import torch

    return torch.Generator(device=device).manual_seed(secrets.randbelow(2**31))


def _turn(
    pair: tuple[Callable[..., int], Callable[..., int]], case: Case, device: str, backwards: bool = False
) -> tuple[float, float]:
    """Call both launchers once on data that neither has seen. Returns their times in ms.

    Raises WrongResult.
    """
    tensors = [each for each in case.arguments if hasattr(each, "data_ptr")]
    written = (*case.outputs, *case.scratch)
    inputs = [each for each in tensors if all(each is not one for one in written)]
    kept = [_bits(each).clone() for each in inputs]
    exact = [each.double() for each in case.exact()]
    results: dict[int, list[Any]] = {}
    times = {0: 0.0, 1: 0.0}
    for which in (1, 0) if backwards else (0, 1):
        for each in written:
            _whole(each).fill_(float("nan"))
        try:
            times[which] = _timed(pair[which], case, device)
            results[which] = [output.double() for output in case.outputs]
        except RuntimeError as error:
            raise WrongResult(f"the kernel fails: {str(error).splitlines()[0]}") from None
        if any(not bool((old == _bits(new)).all()) for old, new in zip(kept, inputs, strict=True)):
            raise WrongResult("an input is changed by the call")
        if not all(map(_untouched_around, written)):
            raise WrongResult("the kernel writes beyond its memory")
    for right, old, new in zip(exact, results[0], results[1], strict=True):
        bound = 4 * float((old - right).abs().max()) + 16 * EPSILON * float(right.abs().max())
        distance = float((new - right).abs().max())
        if not distance <= bound:  # written so that NaN fails
            raise WrongResult(f"a result differs by {distance:.2g}; rounding explains up to {bound:.2g}")
    return times[0], times[1]


def _whole(tensor: Any) -> Any:
    """The memory that a tensor is a view of."""
    return tensor if tensor._base is None else tensor._base


def _untouched_around(tensor: Any) -> bool:
    whole, first = _whole(tensor), tensor.storage_offset()
    return all(bool(part.isnan().all()) for part in (whole[:first], whole[first + tensor.numel() :]))


def _bits(tensor: Any) -> Any:
    """The tensor as integers: equal where it is NaN, too."""
    import torch

    return tensor.view(torch.int32)


def _timed(launcher: Callable[..., int], case: Case, device: str) -> float:
    import torch

    if device == "cpu":
        status, took = launcher(*case.arguments), 0.0
    else:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(BUSY_CYCLES)  # the launch is queued while the GPU is busy, so its cost is hidden
        begin.record()
        status = launcher(*case.arguments)
        end.record()
        torch.cuda.synchronize()
        took = float(begin.elapsed_time(end))
    if status:
        raise WrongResult(f"the launcher returns the CUDA error {status}")
    return took
