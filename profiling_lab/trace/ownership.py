# SPDX-License-Identifier: Apache-2.0
"""The user's own code: which frames may be lines in tables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from profiling_lab.records import dataclass

_INSTALLED = re.compile(r"/(site|dist)-packages/")
_STANDARD_LIBRARY = re.compile(r"/lib(64)?/python\d(\.\d+)?t?/|/python\d+\.zip/")
# torch from a source checkout is outside of site-packages.
_TORCH = re.compile(
    r"(^|/)torch/(_\w+|nn|autograd|optim|utils|cuda|distributed|amp|fx|jit|library|functional|overrides|compiler|"
    r"fft|linalg|special|sparse|export|func|backends|distributions|onnx|profiler|quantization|ao|masked|nested)(/|\.py$)"
)
# torch.profiler removes the folders of sys.path: paths of installed code begin with its package, those of the
# standard library with a module. These packages may be between the user's line and a kernel.
_CUT_LIBRARY = re.compile(
    r"^(torch(vision|audio|text|rec|ao|metrics|tune|titan)|functorch|triton|transformers|accelerate|diffusers|timm|"
    r"peft|(pytorch_)?lightning(_fabric)?|deepspeed|apex|flash_attn|xformers|bitsandbytes|numpy|einops)/|"
    r"^(runpy|threading|contextlib|functools|copy|pickle|queue|weakref)\.py$|^(concurrent|multiprocessing|importlib)/"
)
# Generated code: Inductor's, wherever its cache is, and code compiled from strings by exec and dataclasses.
INDUCTOR = re.compile(r"/torchinductor_[^/]*/|/[a-z2-7]{2}/c[a-z2-7]{40,}\.py$")
_GENERATED = re.compile(r"^<eval_with_key>|^<(frozen |__array_function__)")
# This package is a library too, but its models and exercises count as the user's program.
_THIS_PACKAGE = re.compile(r"/profiling_lab/(?!models/|exercises/e\d)")
_TAUGHT = re.compile(r"/profiling_lab/(models/|exercises/e\d)")
_LAUNCHER = re.compile(r"/bin/[^/.]+$")
_INTERACTIVE = re.compile(r"^<(stdin|ipython-input.*)>$")


@dataclass(frozen=True, slots=True)
class Ownership:
    """Distinguishes own files from libraries.

    `paths` are files, folders or trailing parts of them (`model.py`, `src/model`); only files below them are
    own. Without paths a file is own unless it is in site-packages or dist-packages, in the standard library,
    in torch, in generated code, or is built in.
    """

    paths: tuple[str, ...] = ()

    def is_own(self, file: str, main_is_string: bool = False) -> bool:
        """`main_is_string`: the program itself came as a string (python -c), so `<string>` is the user's
        code.
        """
        if self.paths:
            return any(_under(file, path) for path in self.paths)
        return main_is_string if file == "<string>" else _is_own(file)


@lru_cache(maxsize=1 << 16)  # a trace has few files, and asks for those of every frame of every sample
def _is_own(file: str) -> bool:
    if not file or (file.startswith("<") and not _INTERACTIVE.match(file)):
        return False
    if _TAUGHT.search(file):
        return True
    if _LAUNCHER.search(file):
        return False
    return not any(
        p.search(file)
        for p in (
            _INSTALLED,
            _STANDARD_LIBRARY,
            _TORCH,
            _CUT_LIBRARY,
            _GENERATED,
            INDUCTOR,
            _THIS_PACKAGE,
        )
    )


def without_a_file(paths: Iterable[str], files: Iterable[str]) -> list[str]:
    """The paths below which none of these files is."""
    files = tuple(files)
    return [path for path in paths if not any(_under(file, path) for file in files)]


def _under(file: str, path: str) -> bool:
    wanted = (
        str(Path(path).resolve()) if path in ("", ".", "..") or path.startswith("../") else str(Path(path))
    )
    if wanted.startswith("/"):
        return file == wanted or file.startswith(wanted.rstrip("/") + "/")
    # The trace may come from another machine, so a relative path matches trailing parts.
    return f"/{wanted}/" in f"/{file}/"
