# SPDX-License-Identifier: Apache-2.0
"""Functions in your own files, by name: `a.py:f`, called with what `inputs()` of its file returns."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from profiling_lab.errors import LabError, NotEnoughDataError, UnreadableInputError, UsageError

INPUTS = "inputs"


@dataclass(frozen=True, slots=True)
class Function:
    """One function of a file."""

    name: str
    """as it was given, `a.py:f`; a second time `a.py:f (2)`"""
    function: Callable[..., object]
    inputs: Callable[[], object] | None
    """that of its own file, otherwise that of the first function's file"""
    is_first: bool

    def call_with(self, seed: int) -> partial[object]:
        """A call without arguments, on inputs of its own. Every time the same seed gives the same inputs."""
        function = self.function
        if self.inputs is None:
            return partial(function)
        seed_all(seed)
        made = self._guarded(self.inputs, f"{INPUTS}() for {self.name}")
        if isinstance(made, dict):
            return partial(function, **made)
        return partial(function, *made) if isinstance(made, tuple) else partial(function, made)

    def result(self, seed: int) -> tuple[object, partial[object]]:
        """What one call on new inputs returns, and the call. Raises as `failed` says."""
        call = self.call_with(seed)
        seed_all(seed)
        return self._guarded(call, self.name), call

    def _guarded(self, call: Callable[[], object], what: str) -> object:
        try:
            return call()
        except (Exception, SystemExit) as error:
            raise self.failed(error, what) from error

    def failed(self, error: BaseException, what: str) -> LabError:
        """Nothing can be compared if the first function fails; that another one does is a finding."""
        kind = NotEnoughDataError if self.is_first else LabError
        return kind(f"{what} raised {described(error)}")


def described(error: BaseException) -> str:
    """`ValueError: too small`, in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def seed_all(seed: int) -> None:
    """Seed the generators of the modules that the program has loaded; JAX has keys instead."""
    random.seed(seed)
    for name in ("numpy", "torch"):
        module: Any = sys.modules.get(name)
        if module is not None:
            (module.random.seed if name == "numpy" else module.manual_seed)(seed)


def load(names: Sequence[str]) -> list[Function]:
    """Load the files, each once, and find the functions.

    Raises UsageError for a name that is not FILE:FUNCTION, that the file does not have or that is not a
    function, UnreadableInputError for a file that does not exist, LabError if loading it raises.
    """
    parts = [_split(name) for name in names]
    modules: dict[Path, ModuleType] = {}
    for path, _ in parts:
        if path not in modules:
            _check_siblings(path, modules)
            modules[path] = _loaded(path, len(modules))
    found: list[Function] = []
    shared = getattr(modules[parts[0][0]], INPUTS, None) if parts else None
    for i, (name, (path, attribute)) in enumerate(zip(names, parts, strict=True)):
        again = names[:i].count(name)
        found.append(
            Function(
                name=f"{name} ({again + 1})" if again else name,
                function=_member(modules[path], attribute, path),
                inputs=getattr(modules[path], INPUTS, shared),
                is_first=i == 0,
            )
        )
    for each in found:
        if each.inputs is not None and not callable(each.inputs):
            raise UsageError(f"{INPUTS} in the file of {each.name} must be a function that returns arguments")
    return found


def _split(name: str) -> tuple[Path, str]:
    file, colon, function = name.rpartition(":")
    if not colon or not file or not function:
        raise UsageError(f"expected FILE:FUNCTION, such as a.py:f, not {name!r}")
    path = Path(file).resolve()
    if not path.is_file():
        raise UnreadableInputError(f"there is no file {file}")
    if path.suffix != ".py":
        raise UsageError(f"expected a Python file (.py), not {file}")
    return path, function


def _check_siblings(path: Path, loaded: dict[Path, ModuleType]) -> None:
    """Python loads a module once: two files in different folders would share the helpers of the first."""
    folders = {other.parent for other in loaded} - {path.parent}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or "." in name or Path(file).parent not in folders:
            continue
        if (path.parent / f"{name}.py").is_file() or (path.parent / name / "__init__.py").is_file():
            raise UsageError(
                f"the module {name} is loaded from {Path(file).parent}, and {path.parent} has one of that "
                "name too, but a process has only one: `profiling-lab ab` compares versions of a program"
            )


def _loaded(path: Path, number: int) -> ModuleType:
    name = f"_bench{number}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise LabError(f"{path.name} raised {described(error)} while it was loaded") from error
    return module


def _member(module: ModuleType, attribute: str, path: Path) -> Callable[..., object]:
    value: Any = module
    for part in attribute.split("."):  # Class.method, or a model's attribute
        if not hasattr(value, part):
            raise UsageError(f"{path.name} has no {attribute}{_near(attribute, module)}")
        value = getattr(value, part)
    if not callable(value):
        raise UsageError(f"{attribute} in {path.name} is not a function, but {type(value).__name__}")
    function: Callable[..., object] = value
    return function


def _near(attribute: str, module: ModuleType) -> str:
    from difflib import get_close_matches

    own = [
        name
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__ and name != INPUTS
    ]
    near = get_close_matches(attribute, own, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; it has {', '.join(own)}" if own else "; it defines no function"
