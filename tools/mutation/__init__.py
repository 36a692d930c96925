# SPDX-License-Identifier: Apache-2.0
"""The parts of tools/mutate.py: mutants of Python and C++, the tests of a line, the trees they run in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file: text[start:end] becomes `new`."""

    file: str
    line: int
    start: int
    end: int
    new: str
    code: str
    """The text of the line, stripped. With `change` it names the mutant: line numbers move."""
    change: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.file, self.code, self.change


def mutant(file: str, text: str, start: int, end: int, new: str, context: tuple[int, int]) -> Mutant:
    """With `change` as the text of the span `context`, before and after."""
    first, last = context
    before, after = text[first:last], text[first:start] + new + text[end:last]
    begin = text.rfind("\n", 0, start) + 1
    code = text[begin : text.index("\n", start)].strip()
    return Mutant(
        file, text.count("\n", 0, start) + 1, start, end, new, code, f"{_short(before)} -> {_short(after)}"
    )


def _short(text: str, most: int = 70) -> str:
    words = " ".join(text.split()) or "nothing"
    return words if len(words) <= most else f"{words[: most // 2]} ... {words[-most // 2 :]}"


def distinct(mutants: list[Mutant]) -> list[Mutant]:
    """Without changes that are the same to the reader; of equal names the later ones get a number."""
    seen: dict[tuple[str, str, str], int] = {}
    result, edits = [], set()
    for m in sorted(mutants, key=lambda m: (m.file, m.start, m.end, m.new)):
        if (m.file, m.start, m.end, m.new) in edits:
            continue
        edits.add((m.file, m.start, m.end, m.new))
        seen[m.key] = number = seen.get(m.key, 0) + 1
        change = m.change if number == 1 else f"{m.change} ({number})"
        result.append(Mutant(m.file, m.line, m.start, m.end, m.new, m.code, change))
    return result
