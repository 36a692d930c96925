# SPDX-License-Identifier: Apache-2.0
"""A context manager with the arguments of a constructor: for type checkers, help() and tab completion."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ParamSpec, TypeVar

_Options = ParamSpec("_Options")
_Made = TypeVar("_Made")


def with_options_of(
    constructor: Callable[_Options, _Made],
) -> Callable[[Callable[..., Iterator[_Made]]], Callable[_Options, AbstractContextManager[_Made]]]:
    """Decorates the generator of a context manager that yields what `constructor` makes."""

    def decorate(
        function: Callable[..., Iterator[_Made]],
    ) -> Callable[_Options, AbstractContextManager[_Made]]:
        managed: Any = contextmanager(function)
        managed.__signature__ = inspect.signature(constructor).replace(
            return_annotation=f"AbstractContextManager[{getattr(constructor, '__name__', '')}]"
        )
        checked: Callable[_Options, AbstractContextManager[_Made]] = managed
        return checked

    return decorate
