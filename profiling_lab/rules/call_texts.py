# SPDX-License-Identifier: Apache-2.0
"""Which call in the text of a line is the one from which operations were launched."""

from __future__ import annotations

import ast
import builtins

from profiling_lab.rules.call_sites import CallSite
from profiling_lab.rules.expressions import called_name

_OBJECTS, _NO_MODULES = {"self", "cls"}, {"torch", "F", "nn", "np", "math", *dir(builtins)}


def calls_of(site: CallSite, statement: ast.stmt | None, own: set[str]) -> list[ast.Call]:
    """The calls with arguments in a statement that may be this one. A module has any name, but is called as
    itself, or as a part of an object; where a line may call several, it is not known which it is.
    """
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)] if statement else []
    calls = [call for call in calls if call.args or call.keywords]
    if site.name != "forward":
        return [call for call in calls if called_name(call) == site.name]
    calls = [call for call in calls if called_name(call) not in own and _root(call.func) not in _NO_MODULES]
    likely = [call for call in calls if isinstance(call.func, ast.Name) or _root(call.func) in _OBJECTS]
    found = likely or [call for call in calls if _root(call.func)]
    return found if len({ast.unparse(call) for call in found}) == 1 else []


def _root(node: ast.AST) -> str:
    """`self` of `self.net.head`; '' where it begins with something else than a name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
