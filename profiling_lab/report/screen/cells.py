# SPDX-License-Identifier: Apache-2.0
"""How many cells of a screen a text takes. Latin letters take one; others need rich's tables."""

from __future__ import annotations

_COMBINING = "\u0300"
"""the first character that takes no cell of its own"""


def cell_len(text: str) -> int:
    if text.isascii() or max(text) < _COMBINING:
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def set_cell_size(text: str, cells: int) -> str:
    """The text cut or filled up with blanks to this number of cells."""
    if text.isascii() or max(text) < _COMBINING:
        return text[: max(cells, 0)].ljust(cells)
    from rich.cells import set_cell_size

    return set_cell_size(text, cells)
