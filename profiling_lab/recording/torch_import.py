# SPDX-License-Identifier: Apache-2.0
"""Does something with torch as soon as the script has imported it, without importing it for the script."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[Any], object]


def when_imported(action: Action) -> Callable[[], None]:
    """Call `action(torch)` now if torch is there, else after its import. Returns how to give that up."""
    torch = sys.modules.get("torch")
    if torch is not None:
        action(torch)
        return lambda: None
    _finder.actions.append(action)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    return lambda: _finder.forget(action)


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Waits for `import torch` and lets the usual finders do the import itself."""

    def __init__(self) -> None:
        self.actions: list[Action] = []

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        spec: ModuleSpec | None = None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                break
        if spec is None:
            return None
        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            del loader.exec_module  # the loader is as it was
            execute(module)
            actions, self.actions = self.actions, []
            self._leave()
            for action in actions:
                action(module)

        setattr(loader, "exec_module", execute_and_act)  # noqa: B010 - mypy forbids the plain form
        return spec

    def forget(self, action: Action) -> None:
        if action in self.actions:
            self.actions.remove(action)
        if not self.actions:
            self._leave()

    def _leave(self) -> None:
        # A new list: another thread may be going through this one, and would miss a finder.
        if self in sys.meta_path:
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]


_finder = _TorchFinder()
