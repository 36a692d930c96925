# SPDX-License-Identifier: Apache-2.0
"""The compiled modules of the package, the Python version, and torch."""

from __future__ import annotations

import platform
import sys
from functools import lru_cache
from importlib import import_module
from types import ModuleType

from profiling_lab.doctor.check import HealthCheck, absent, broken, ok
from profiling_lab.doctor.machine import driver
from profiling_lab.errors import LabError

_BUILD_AGAIN = "reinstall the package with a C++20 compiler available: pip install ."


def check_python() -> HealthCheck:
    found = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if platform.python_implementation() != "CPython" or sys.version_info < (3, 10):
        return broken("python", found, "use CPython 3.10 or newer")
    return ok("python", found)


@lru_cache(maxsize=1)
def torch_or_reason() -> ModuleType | str:
    try:
        return import_module("torch")
    except ImportError as error:
        return "not installed" if error.name == "torch" else f"cannot be imported: {error}"
    except OSError as error:  # one of its libraries
        return f"cannot be imported: {error}"


def check_torch() -> HealthCheck:
    torch = torch_or_reason()
    if torch == "not installed":
        return absent("torch", "not installed", "pip install torch; traces can be read without it")
    if isinstance(torch, str):
        return broken("torch", torch, "reinstall torch")
    built_for = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
    found = f"{torch.__version__}, {built_for}"
    machine = driver()
    if isinstance(machine, str) or not machine.gpus:
        return ok("torch", found)
    if torch.version.cuda is None:
        return broken("torch", f"{found}, but there is a GPU", "install a CUDA build: https://pytorch.org")
    if not torch.cuda.is_available():
        runs = f"{machine.cuda[0]}.{machine.cuda[1]}"
        return broken(
            "torch",
            f"{found}, but it cannot use the GPU",
            f"driver {machine.version} supports CUDA up to {runs}: install a torch build for that, or a "
            "newer driver; "
            "check CUDA_VISIBLE_DEVICES",
        )
    return ok("torch", found)


def check_analysis() -> HealthCheck:
    return _check_module("_analysis", "traces cannot be read")


def check_recorder() -> HealthCheck:
    return _check_module("_recorder", "nothing can be recorded")


def _check_module(name: str, consequence: str) -> HealthCheck:
    try:
        module = import_module(f"profiling_lab.{name}")
    except ImportError as error:
        missing = (
            f"not built: {consequence}" if "No module named" in str(error) else f"cannot be loaded: {error}"
        )
        return broken(name, missing, _BUILD_AGAIN)
    return ok(name, f"built, {module.__file__}")


def check_ops() -> HealthCheck:
    from profiling_lab.ops import _load

    try:
        info = _load.build_info()
    except LabError as error:
        return broken("_ops", str(error).rstrip("."), _BUILD_AGAIN)
    if not isinstance(torch_or_reason(), str):
        try:
            _load.load()
        except LabError as error:
            return broken("_ops", str(error).rstrip("."), "recording works without the ops")
    cuda = info.get("cuda")
    machine = driver()
    if cuda is None:
        has_gpu = not isinstance(machine, str) and machine.gpus
        advice = "reinstall the package with nvcc on PATH to get the CUDA kernels" if has_gpu else ""
        return ok("_ops", "built for the CPU only", advice)
    details = (
        ", ".join(f"{key} {value}" for key, value in cuda.items()) if isinstance(cuda, dict) else str(cuda)
    )
    return ok("_ops", f"built with CUDA kernels ({details})")
