# SPDX-License-Identifier: Apache-2.0
"""Finds the compiled ops and introduces them to the torch that is installed."""

from __future__ import annotations

import ctypes
import json
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from profiling_lab.errors import LabError

_NEEDS = "profiling_lab.ops needs PyTorch 2.10 or newer"


class OpsUnavailableError(LabError, ImportError):
    """The compiled ops cannot be used in this environment; the message says why and what to do."""


def library_path() -> str:
    """Where `_ops` is, by the import system: an editable install keeps it away from the sources."""
    spec = find_spec("profiling_lab._ops")
    if spec is None or spec.origin is None:
        raise OpsUnavailableError(
            "profiling_lab._ops was not built; install profiling_lab again where a C++20 compiler is found."
        )
    return spec.origin


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    path = library_path()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise OpsUnavailableError(f"{path} cannot be loaded: {error}.") from error
    library.pl_init.argtypes = [ctypes.c_char_p]
    library.pl_init.restype = ctypes.c_char_p
    library.pl_build_info.argtypes = []
    library.pl_build_info.restype = ctypes.c_char_p
    return library


def build_info() -> dict[str, Any]:
    """Version, git hash, compiler, torch_floor, and cuda: nvcc, architectures and cudart, or None.

    Needs no torch. Raises OpsUnavailableError where the library is missing.
    """
    info: dict[str, Any] = json.loads(_library().pl_build_info())
    return info


def has_cuda_kernels() -> bool:
    """True if the library was built with CUDA kernels, whether or not there is a GPU here."""
    return build_info()["cuda"] is not None


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int("".join(ch for ch in minor if ch.isdigit()) or 0)


@lru_cache(maxsize=1)
def load() -> None:
    """Registers the ops as torch.ops.profiling_lab, once. Raises OpsUnavailableError (an ImportError)."""
    try:
        import torch
    except ImportError as error:
        raise OpsUnavailableError(f"{_NEEDS}; it is not installed (pip install torch).") from error
    if _release(torch.__version__) < (2, 10):
        raise OpsUnavailableError(f"{_NEEDS}; found torch {torch.__version__}.")
    message = _library().pl_init(torch._C.__file__.encode()).decode()
    if message:
        raise OpsUnavailableError(message)
