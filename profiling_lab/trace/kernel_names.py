# SPDX-License-Identifier: Apache-2.0
"""Short kernel names, without template arguments and namespaces."""

from __future__ import annotations

from functools import lru_cache

_OPENS, _CLOSES = "<([{", ">)]}"


@lru_cache(maxsize=65536)
def base_name(name: str) -> str:
    """`void at::native::reduce_kernel<512, 1, Op<float>>(Op<float>)` is `reduce_kernel`.

    Without return type, namespaces, template arguments and parameters. If nothing is left, the name stays.
    """
    text = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    kept: list[str] = []
    depth = 0
    for i, letter in enumerate(text):
        if letter in _OPENS:
            if depth == 0 and letter == "(" and kept:
                break  # the parameters
            depth += 1
        elif letter in _CLOSES and depth and text[i - 1 : i + 1] != "->":
            depth -= 1
        elif depth == 0:
            kept.append(letter)
    last = "".join(kept).strip().split(" ")[-1].split("::")[-1]
    return last or name
