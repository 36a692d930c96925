# SPDX-License-Identifier: Apache-2.0
"""One call of an operator, with its arguments by the names in the operator's schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of the schema and the tensors that it holds."""

    name: str
    tensors: tuple[Any, ...]
    is_written: bool
    is_out: bool
    """an out= argument, which is never read"""


@dataclass(frozen=True, slots=True)
class Call:
    """`name` is the operator's without overload: `aten::mm`."""

    name: str
    values: dict[str, Any]
    """every given argument by name"""
    arguments: tuple[Argument, ...]
    """those with tensors"""
    results: tuple[Any, ...]
    """the tensors that the call returned"""

    @classmethod
    def of(cls, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Call:
        """func: an OpOverload."""
        schema = func._schema
        values: dict[str, Any] = {}
        arguments = []
        positional = iter(args)
        for one in schema.arguments:
            if one.kwarg_only:
                if one.name not in kwargs:
                    continue
                value = kwargs[one.name]
            elif one.name in kwargs:
                value = kwargs[one.name]
            else:
                value = next(positional, None)
            values[one.name] = value
            if found := tuple(_tensors(value)):
                written = one.alias_info is not None and one.alias_info.is_write
                arguments.append(Argument(one.name, found, written, one.is_out))
        return cls(schema.name, values, tuple(arguments), tuple(_tensors(result)))

    def tensor(self, *names: str) -> Any:
        """The tensor given under the first of these names that has one."""
        for argument in self.arguments:
            if argument.name in names:
                return argument.tensors[0]
        raise KeyError(names)


def _tensors(value: Any) -> Iterator[Any]:
    if hasattr(value, "untyped_storage"):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
