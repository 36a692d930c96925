# SPDX-License-Identifier: Apache-2.0
"""In a child process of a recorded program: start recording when it first uses the GPU.

This runs while Python starts, so it imports nothing. In a process without CUDA work nothing else happens.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

VARIABLE = "PROFILING_LAB_RECORD"

# Importing one of these means using the GPU. torch is not listed: many processes import it without GPU work.
_USE_THE_GPU = ("cupy", "jaxlib", "numba.cuda", "pycuda", "cuda.bindings", "tensorflow")


class _Finder:
    """Watches for the import of a GPU library; the import itself is left to the other finders."""

    def __init__(self) -> None:
        self._under_way: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if (name != "torch" and name not in _USE_THE_GPU) or name in self._under_way:
            return None
        self._under_way.add(name)  # another finder of this kind may call this one again
        try:
            spec = self._found_behind(name, path, target)
        finally:
            self._under_way.discard(name)
        loader: Any = spec.loader if spec is not None else None
        if not hasattr(loader, "exec_module") or not hasattr(loader, "__dict__"):
            return spec
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # restore the loader
            execute(module)
            _imported(name, module)

        loader.exec_module = execute_and_act
        return spec

    def _found_behind(self, name: str, path: Any, target: ModuleType | None) -> ModuleSpec | None:
        finders: list[Any] = sys.meta_path[sys.meta_path.index(self) + 1 :]  # type: ignore[arg-type]
        for finder in finders:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None


_finder = _Finder()


def wait_for_cuda() -> None:
    """Record this process, as its environment requests, from its first use of the GPU."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)  # type: ignore[arg-type]


def forget() -> None:
    """Remove the inherited settings: this process records itself."""
    os.environ.pop(VARIABLE, None)
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)  # type: ignore[arg-type]


def _imported(name: str, module: ModuleType) -> None:
    if VARIABLE not in os.environ:
        return
    try:
        if name == "torch":
            _attract_nvtx()
            module.cuda._lazy_call(lambda: _start(True))  # when torch initialises CUDA
        else:
            _start(False)
    except Exception:  # another torch version: this process is not recorded, and nothing else changes
        pass


def _attract_nvtx() -> None:
    """torch's NVTX looks for a tool at its first range, which may be long before its first kernel."""
    import json
    from importlib.util import find_spec

    recorder = find_spec("profiling_lab._recorder")
    if json.loads(os.environ[VARIABLE]).get("nvtx") and recorder is not None and recorder.origin:
        os.environ.setdefault("NVTX_INJECTION64_PATH", recorder.origin)


def _start(uses_gpu: bool) -> None:
    """Never raises, because it runs inside the program's own calls."""
    text = os.environ.get(VARIABLE)
    if not text:
        return
    try:
        from profiling_lab.recording import children

        children.begin(text, uses_gpu)
    except Exception:  # no compiled recorder for this Python
        pass
