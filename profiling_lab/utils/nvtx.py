# SPDX-License-Identifier: Apache-2.0
"""NVTX ranges and marks, which name parts of a program in profilers, and in recordings of this project.

with nvtx.range("forward"):
    output = model(batch)

@nvtx.annotate("my_function", color="blue")
def my_function(): ...

Ranges come from NVIDIA's library `nvtx` if it is installed (pip install "profiling-lab[nvtx]"), with colour
and domain; otherwise from torch, which has neither. Without both, or where no profiler runs, they do nothing.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar, cast

from profiling_lab.utils.devices import loaded_torch

__all__ = ["annotate", "mark", "range"]

F = TypeVar("F", bound=Callable[..., Any])
Color = str | int | None


class annotate:  # the name in the library nvtx
    """A range as a decorator of a function, or as a context manager.

    name: default the function's; for a `with` statement it should be given. color: a name such as "blue",
    any of matplotlib's where that is installed, or 0xRRGGBB; an unknown one is a RuntimeWarning, no more.
    domain: a name under which profilers group ranges. An async function has its range from start to end, its
    waits included; a generator function is refused with a TypeError, because its call does nothing yet.
    """

    def __init__(self, name: str | None = None, color: Color = None, domain: str | None = None) -> None:
        self.name, self.color, self.domain = name, color, domain
        self._open: list[Callable[[], object]] = []

    def __enter__(self) -> annotate:
        self._open.append(_push(self.name or "", self.color, self.domain))
        return self

    def __exit__(self, *failure: object) -> None:
        self._open.pop()()

    def __call__(self, func: F) -> F:
        name = self.name or func.__qualname__.split("<locals>.")[-1]
        if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
            raise TypeError(f"nvtx.annotate: {name} is a generator function, whose call does no work yet")
        color, domain = self.color, self.domain

        @functools.wraps(func)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            # Ranges of other tasks open and close on this thread meanwhile, so this one is not of its stack.
            end = _start(name, color, domain)
            try:
                return await func(*args, **kwargs)
            finally:
                end()

        @functools.wraps(func)
        def called(*args: Any, **kwargs: Any) -> Any:
            with annotate(name, color, domain):  # one per call: threads may run the function concurrently
                return func(*args, **kwargs)

        return cast(F, awaited if inspect.iscoroutinefunction(func) else called)


def range(name: str, color: Color = None, domain: str | None = None) -> annotate:
    """A range for a `with` statement; the arguments are those of annotate."""
    return annotate(name, color, domain)


def mark(name: str, color: Color = None, domain: str | None = None) -> None:
    """A point in time."""
    if (library := _library()) is not None:
        library.mark(name, color=_known(color), domain=domain)
    elif (torch := _torch_nvtx()) is not None:
        torch.mark(name)


def _push(name: str, color: Color, domain: str | None) -> Callable[[], object]:
    """Open a range on this thread; returns what closes it."""
    if (library := _library()) is not None:
        library.push_range(name, color=_known(color), domain=domain)
        return functools.partial(library.pop_range, domain)
    if (torch := _torch_nvtx()) is not None:
        torch.range_push(name)
        return cast(Callable[[], object], torch.range_pop)
    return _nothing


def _start(name: str, color: Color, domain: str | None) -> Callable[[], object]:
    """Open a range that nests in no other; returns what closes it."""
    if (library := _library()) is not None:
        return functools.partial(
            library.end_range, library.start_range(name, color=_known(color), domain=domain)
        )
    if (torch := _torch_nvtx()) is not None:
        return functools.partial(torch.range_end, torch.range_start(name))
    return _nothing


def _nothing() -> None:
    """Closes a range that was not opened."""


@functools.cache
def _library() -> Any:
    try:
        return import_module("nvtx")
    except Exception:  # missing, or a library of another machine: ranges are not worth a program
        return None


def _torch_nvtx() -> Any:
    """A CPU build of torch has the functions, and all of them raise."""
    torch = loaded_torch()
    return None if torch is None or torch.version.cuda is None else torch.cuda.nvtx


@functools.cache
def _known(color: Color) -> Color:
    """The library raises for an unknown colour, but only in a program that is profiled."""
    try:
        return cast(int, import_module("nvtx.colors").color_to_hex(color))
    except (TypeError, ValueError) as error:
        warnings.warn(f"nvtx: {error}; the range has the default colour", RuntimeWarning, stacklevel=2)
        return None
