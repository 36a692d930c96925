# SPDX-License-Identifier: Apache-2.0
"""Mutants of a C++ file, by its tokens: clang-format has put blanks around every operator of two operands, so
templates, pointers and references are told from them. Mutants that do not compile are no mutants.

Left out: comments, strings, preprocessor lines, what a CPU build does not compile, and functions that only
CUDA tensors reach.
"""

from __future__ import annotations

import re

from mutation import Mutant, distinct, mutant

_HIDDEN = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | R"(?P<mark>\w*)\(.*?\)(?P=mark)" | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'
    | ^[ ]*\#(?:[^\n\\]|\\\n|\\.)* """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_NOT_ON_CPU = re.compile(
    r"^#\s*ifdef PLAB_HAS_(?:CUDA|SM90A)$.*?^#\s*(?:else|endif)", re.DOTALL | re.MULTILINE
)
_FOR_CUDA_TENSORS = re.compile(
    r"^\w[^\n;]*\b(?:check_in_place|check_int32|forward_with_cache|forward_with_mask|run_fwd|own_operands|is_tf32)\([^;]*?\{\n.*?^\}",
    re.DOTALL | re.MULTILINE,
)
_NO_CODE = re.compile(r"^\s*(?:using|static_assert|template|requires|namespace|extern)\b[^;{]*", re.MULTILINE)
_SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&",
    "+": "-", "-": "+", "*": "/", "/": "*", "%": "*", "+=": "-=", "-=": "+=", "*=": "/=",
}  # fmt: skip
_OPERATOR = re.compile(
    r"(?<= )(" + "|".join(map(re.escape, sorted(_SWAPS, key=len, reverse=True))) + r")(?=[ \n])"
)
_NUMBER = re.compile(r"(?<![\w.'])(\d+)(?![\w.'])")
_WORD = re.compile(r"\b(true|false|std::min|std::max)\b")
_WORDS = {"true": "false", "false": "true", "std::min": "std::max", "std::max": "std::min"}
_IF = re.compile(r"\bif \((?!\()")
_NOT = re.compile(r"(?<=[(\s])!(?=[\w(])")
_CALL = re.compile(r"^ +(?!return\b|if\b|for\b|while\b|else\b|switch\b)[\w:.>-]+\(", re.MULTILINE)


def mutants(file: str, text: str) -> list[Mutant]:
    shown = text
    for pattern in (_NOT_ON_CPU, _FOR_CUDA_TENSORS, _HIDDEN, _NO_CODE):
        shown = pattern.sub(lambda m: re.sub(r"[^\n]", "\0", m[0]), shown)
    found: list[Mutant] = []

    def note(start: int, end: int, new: str, reach: int = 24) -> None:
        line = text.rfind("\n", 0, start) + 1, text.index("\n", end)
        context = (max(line[0], start - reach), min(line[1], end + reach))
        found.append(mutant(file, text, start, end, new, context))

    for m in _OPERATOR.finditer(shown):
        note(*m.span(), _SWAPS[m[0]])
    for m in _NUMBER.finditer(shown):
        note(*m.span(), str(int(m[0]) + 1))
        if int(m[0]) > 0:
            note(*m.span(), str(int(m[0]) - 1))
    for m in _WORD.finditer(shown):
        note(*m.span(), _WORDS[m[0]])
    for m in _NOT.finditer(shown):
        note(*m.span(), "")
    for m in _IF.finditer(shown):
        end = _closing(shown, m.end() - 1)
        condition = text[m.end() : end]
        if ";" not in condition:  # if (init; condition)
            found.append(mutant(file, text, m.end(), end, f"!({condition})", (m.end(), end)))
            found.append(mutant(file, text, m.end(), end, "false", (m.end(), end)))
    for m in _CALL.finditer(shown):
        end = _closing(shown, m.end() - 1) + 1
        if shown[end : end + 1] == ";" and _is_statement(shown, m.start()):
            start = m.start() + len(m[0]) - len(m[0].lstrip())
            found.append(mutant(file, text, start, end, "", (start, end)))
    return distinct(found)


def _closing(text: str, opening: int) -> int:
    """Where the parenthesis at `opening` is closed."""
    depth = 0
    for m in re.compile(r"[()]").finditer(text, opening):
        depth += 1 if m[0] == "(" else -1
        if depth == 0:
            return m.start()
    raise ValueError("a parenthesis is not closed")


def _is_statement(text: str, start: int) -> bool:
    before = text[:start].rstrip(" \n\0")
    return before[-1:] in (";", "{", "}", ":", ")")
