# SPDX-License-Identifier: Apache-2.0
"""Calls an action as soon as the program has imported a module, without importing it ourselves."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[Any], object]


def when_imported(action: Action, name: str = "torch") -> Callable[[], None]:
    """Call `action(module)` now if the module is imported, else after its import. Returns a cancel
    function.
    """
    module = sys.modules.get(name)
    if module is not None:
        action(module)
        return lambda: None
    _finder.actions.setdefault(name, []).append(action)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    return lambda: _finder.forget(name, action)


class _Finder(importlib.abc.MetaPathFinder):
    """Watches for the import of some modules; the import itself is left to the usual finders."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.actions:
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
            del loader.exec_module  # restore the loader
            execute(module)
            # The module is complete, but the import system marks it only after this. Until then every thread
            # that imports it, as torch's own functions do, waits for this thread.
            if module.__spec__ is not None:
                vars(module.__spec__)["_initializing"] = False
            actions = self.actions.pop(name, [])
            self._leave_if_done()
            for action in actions:
                action(module)

        setattr(loader, "exec_module", execute_and_act)  # noqa: B010 - mypy forbids the plain form
        return spec

    def forget(self, name: str, action: Action) -> None:
        waiting = self.actions.get(name, [])
        if action in waiting:
            waiting.remove(action)
        if not waiting:
            self.actions.pop(name, None)
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        # A new list: another thread may be iterating over this one, and would miss a finder.
        if not self.actions and self in sys.meta_path:
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]


_finder = _Finder()
