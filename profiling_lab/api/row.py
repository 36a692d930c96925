# SPDX-License-Identifier: Apache-2.0
"""A row of a table: the values of JSON, by name or as attributes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any


class Row(Mapping[str, Any]):
    """Read-only. `row["gpu_ns"]` and `row.gpu_ns` are the same; None is unknown, never 0."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    @property
    def place(self) -> str:
        """The file's name and the line, `model.py:87`, for a label; '' where the row has none."""
        name = os.path.basename(self._values.get("file") or "")
        line = self._values.get("line")
        return f"{name}:{line}" if name and line else name

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        # Copying and unpickling look for attributes before there are values.
        if not name.startswith("_") and name in self._values:
            return self._values[name]
        raise AttributeError(
            f"this row has no {name!r}; it has {', '.join(self)}" if name[:1] != "_" else name
        )

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._values})

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)
