# SPDX-License-Identifier: Apache-2.0
"""Where files are read and summaries merged: in processes of this machine, or on a Dask cluster.

Both do the same with the same functions. A pool hands out handles; what they refer to may be on another
machine, so only what is asked for with `gather` or `merge` comes here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from profiling_lab.analysis.ranks.options import Options
from profiling_lab.analysis.ranks.reading import Failure, FileSummary, read_file
from profiling_lab.analysis.ranks.worker import WorkerDied, in_processes
from profiling_lab.errors import UnreadableInputError, UsageError

Handle = Any
Done = Callable[[int], None]
"""called with how many files are done"""
WIDTH = 8
"""parts merged at once: the depth of the tree is the logarithm of the ranks to this base"""
_KEEP_FREED = {"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None}
"""Dask has its workers give back what they free from 64 KB on. New pages for every array of a file then take
a third of the processor time."""


class Pool(Protocol):
    """Each handle refers to one value."""

    def read(self, paths: Sequence[str], options: Options, done: Done) -> list[Handle]:
        """A FileSummary per path, in the order of the paths. Raises UsageError."""

    def map(
        self, function: Callable[..., Any], handles: Sequence[Handle], *shared: Any, each: Sequence[Any] = ()
    ) -> list[Handle]:
        """function(value, *shared) per handle, with its own element of `each` in front of `shared`."""

    def change(self, function: Callable[..., Any], handles: list[Handle], each: Sequence[Any]) -> None:
        """Let each handle refer to function(value, its element of `each`). Old values are not kept."""

    def read_again(
        self, function: Callable[..., Any], handles: Sequence[Handle], *shared: Any
    ) -> list[Handle]:
        """As `map`, for a function that reads the files of FileSummaries. Raises UnreadableInputError."""

    def merge(
        self, merged: Callable[[Sequence[Any]], Any], handles: Sequence[Handle], of: Callable[[Any], Any]
    ) -> Any:
        """One value from of(value) of all, WIDTH merged at a time: few of them are there at once."""

    def gather(self, handles: Sequence[Handle]) -> list[Any]:
        """The values."""


class LocalPool:
    """Reads files in `jobs` processes; 1 reads in this one. The rest is little work and done here."""

    def __init__(self, jobs: int | None = None) -> None:
        self._jobs = jobs or len(os.sched_getaffinity(0))

    def read(self, paths: Sequence[str], options: Options, done: Done) -> list[Handle]:
        jobs = min(self._jobs, len(paths))
        if jobs <= 1:
            out = []
            for count, path in enumerate(paths, 1):
                out.append(read_file(path, options))
                done(count)
            return out
        found = in_processes(read_file, [(path, options) for path in paths], jobs, done)
        return [
            FileSummary(path, (), _died(path)) if isinstance(file, WorkerDied) else file
            for path, file in zip(paths, found, strict=True)
        ]

    def read_again(
        self, function: Callable[..., Any], handles: Sequence[Handle], *shared: Any
    ) -> list[Handle]:
        jobs = min(self._jobs, len(handles))
        if jobs <= 1:
            return self.map(function, handles, *shared)
        found = in_processes(function, [(value, *shared) for value in handles], jobs)
        died = [handle for handle, value in zip(handles, found, strict=True) if isinstance(value, WorkerDied)]
        if died:
            raise UnreadableInputError(_died(died[0].path).sentence)
        return found

    def map(
        self, function: Callable[..., Any], handles: Sequence[Handle], *shared: Any, each: Sequence[Any] = ()
    ) -> list[Handle]:
        return [
            function(value, *own, *shared) for value, own in zip(handles, _own(handles, each), strict=True)
        ]

    def change(self, function: Callable[..., Any], handles: list[Handle], each: Sequence[Any]) -> None:
        for i, own in enumerate(each):
            handles[i] = function(handles[i], own)

    def merge(
        self, merged: Callable[[Sequence[Any]], Any], handles: Sequence[Handle], of: Callable[[Any], Any]
    ) -> Any:
        waiting: list[list[Any]] = [[]]
        """by level of the tree what is not merged yet, less than WIDTH each"""
        for value in handles:
            part, level = of(value), 0
            while True:
                waiting[level].append(part)
                if len(waiting[level]) < WIDTH:
                    break
                part, waiting[level] = merged(waiting[level]), []
                level += 1
                waiting += [[]] if level == len(waiting) else []
        return merged([part for level in reversed(waiting) for part in level])

    def gather(self, handles: Sequence[Handle]) -> list[Any]:
        return list(handles)


def _merged(
    merged: Callable[[Sequence[Any]], Any], values: Sequence[Any], of: Callable[[Any], Any] | None
) -> Any:
    return merged([of(value) for value in values] if of is not None else values)


def _own(handles: Sequence[Handle], each: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [(value,) for value in each] if each else [() for _ in handles]


def _died(path: str) -> Failure:
    sentence = f"{path}: the process that read it was killed; the machine may have too little memory for it"
    return Failure(path, sentence, UnreadableInputError.exit_code)


class DaskPool:
    """Everything happens on the cluster of a dask.distributed client, where its workers see the files."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def read(self, paths: Sequence[str], options: Options, done: Done) -> list[Handle]:
        from distributed import as_completed

        # A worker's working folder is its own affair.
        whole = [os.path.abspath(path) for path in paths]
        handles = [self._client.submit(read_file, path, options, pure=False) for path in whole]
        for count, handle in enumerate(as_completed(handles), 1):
            if handle.status == "error" and isinstance(handle.exception(), UsageError):
                raise handle.exception()
            done(count)
        return [
            handle
            if handle.status != "error"
            else self._client.submit(FileSummary, path, (), _died(path), pure=False)
            for path, handle in zip(paths, handles, strict=True)
        ]

    def map(
        self, function: Callable[..., Any], handles: Sequence[Handle], *shared: Any, each: Sequence[Any] = ()
    ) -> list[Handle]:
        spread = [self._client.scatter(value, broadcast=True, hash=False) for value in shared]
        return [
            self._client.submit(function, handle, *own, *spread, pure=False)
            for handle, own in zip(handles, _own(handles, each), strict=True)
        ]

    def read_again(
        self, function: Callable[..., Any], handles: Sequence[Handle], *shared: Any
    ) -> list[Handle]:
        return self.map(function, handles, *shared)

    def change(self, function: Callable[..., Any], handles: list[Handle], each: Sequence[Any]) -> None:
        handles[:] = self.map(function, handles, each=each)

    def merge(
        self, merged: Callable[[Sequence[Any]], Any], handles: Sequence[Handle], of: Callable[[Any], Any]
    ) -> Any:
        level, depth = list(handles), 0
        while True:
            # What is farther up goes first: its parts are then no longer needed.
            level = [
                self._client.submit(
                    _merged, merged, level[i : i + WIDTH], None if depth else of, pure=False, priority=depth
                )
                for i in range(0, len(level), WIDTH)
            ]
            depth += 1
            if len(level) == 1:
                return level[0].result()

    def gather(self, handles: Sequence[Handle]) -> list[Any]:
        return list(self._client.gather(list(handles)))


@contextmanager
def dask_pool(address: str, jobs: int | None = None, timeout_s: int = 10) -> Iterator[DaskPool]:
    """A pool on the Dask scheduler at `address`, or on a cluster of `jobs` processes here for 'local'.

    Raises UsageError if dask.distributed is not installed, no scheduler answers at the address, no worker
    joins it within timeout_s, or a worker cannot import this package.
    """
    try:
        from dask import config
        from distributed import Client, LocalCluster
    except ImportError:
        raise UsageError(
            '--dask needs dask.distributed, which is not installed: pip install "profiling-lab[dask]"'
        ) from None
    if address == "local":
        workers = jobs or len(os.sched_getaffinity(0))
        with (
            config.set(_KEEP_FREED),
            LocalCluster(
                n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=50
            ) as cluster,
            Client(cluster) as client,
        ):
            _check_workers(client, address, timeout_s)
            yield DaskPool(client)
        return
    try:
        client = Client(address, timeout=timeout_s)
    except (OSError, ValueError) as error:
        raise UsageError(f"--dask {address}: no Dask scheduler answers there ({error})") from None
    with client:
        _check_workers(client, address, timeout_s)
        yield DaskPool(client)


def _check_workers(client: Any, address: str, timeout_s: int) -> None:
    """A worker that cannot import what it is sent leaves the cluster, and the client would wait forever."""

    # A local function travels as code, so a worker needs no package to run it.
    def problem() -> str:
        try:
            from profiling_lab.analysis.ranks.reading import read_file  # noqa: F401
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    try:
        client.wait_for_workers(1, timeout=timeout_s)
    except TimeoutError:
        raise UsageError(f"--dask {address}: no worker joined the scheduler within {timeout_s} s") from None
    for worker, error in client.run(problem).items():
        if error:
            raise UsageError(
                f"--dask {address}: the worker {worker} cannot import profiling_lab ({error}); "
                "install the same version there"
            )
