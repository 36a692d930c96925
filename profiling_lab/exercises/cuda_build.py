# SPDX-License-Identifier: Apache-2.0
"""Compile the CUDA source of an exercise: with nvcc for the GPU that is there, or with the host's compiler
for the CPU, where cuda_on_cpu.h stands in for the GPU.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
STAND_IN = HERE / "cuda_on_cpu.h"
LIMIT_S = 300
_compiled_for_cpu: dict[tuple[str, str], bytes] = {}
_LAUNCH = re.compile(r"(\w+(?:<[^<>;{}]*>)?)\s*<<<(.+?)>>>\s*\(", re.S)
_DYNAMIC = re.compile(
    r"extern\s+__shared__\s+(?:__align__\(\d+\)\s*|alignas\(\d+\)\s*)?([\w ]+?)\s+(\w+)\s*\[\s*\]\s*;"
)
_HEADERS = re.compile(r"^#include <cuda_runtime(?:_api)?\.h>$", re.M)


class BuildError(Exception):
    """The compiler's first error, as one sentence."""


def for_gpu(source: Path, target: Path, arch: str = "native") -> Path:
    """A shared library for the GPU. Raises BuildError."""
    command = ["nvcc", "-O3", f"-arch={arch}", "-lineinfo", "-Xcompiler", "-fPIC", "-shared"]
    return _compiled([*command, "-o", str(target), str(source)], source, target)


def for_cpu(source: Path, target: Path) -> Path:
    """A shared library whose kernels run on the CPU. Raises BuildError, also for CUDA that the stand-in does
    not know.
    """
    compiler = host_compiler()
    if compiler is None:
        raise BuildError("there is no C++ compiler on the PATH")
    text = on_cpu(source.read_text(encoding="utf-8"))
    if (compiler, text) in _compiled_for_cpu:
        target.write_bytes(_compiled_for_cpu[compiler, text])
        return target
    translated = target.with_suffix(".cpp")
    translated.write_text(text, encoding="utf-8")
    command = [compiler, "-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-I", str(HERE)]
    if Path(compiler).name == "g++":
        command.append("-fno-gnu-unique")  # two libraries in one process share nothing
    _compiled([*command, "-o", str(target), str(translated)], source, target)
    _compiled_for_cpu[compiler, text] = target.read_bytes()
    return target


def host_compiler() -> str | None:
    return next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)


def on_cpu(text: str) -> str:
    """The source with the syntax of C++ alone: launches and dynamic shared memory."""
    text = _HEADERS.sub(f'#include "{STAND_IN.name}"', text)
    text = _DYNAMIC.sub(r"\1* \2 = reinterpret_cast<\1*>(on_cpu::dynamic_shared);", text)
    return _LAUNCH.sub(r"on_cpu::launch(\1, \2)(", text)


def _compiled(command: list[str], source: Path, target: Path) -> Path:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} could not compile {source.name}: {error}") from None
    if done.returncode:
        lines = (done.stderr + done.stdout).strip().splitlines()
        first = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
        raise BuildError(f"{source.name} does not compile: {first.replace(str(source.parent) + '/', '')}")
    return target
