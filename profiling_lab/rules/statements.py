# SPDX-License-Identifier: Apache-2.0
"""The statements behind lines, where the recording has their text, and what they do with a value."""

from __future__ import annotations

import ast
from functools import cached_property

import numpy as np

from profiling_lab.rules.expressions import given_values, reads
from profiling_lab.rules.pure_lines import statement_of
from profiling_lab.rules.view import View
from profiling_lab.trace import Frame
from profiling_lab.trace.columns import I64


class Statements:
    """Those of the lines that launched something, by the line's number. One of several lines is not known."""

    def __init__(self, view: View) -> None:
        self._view, texts = view, view.trace.source_texts
        found = ((number, view.place(number)) for number in range(view.lines))
        parsed = ((n, statement_of(texts.get((at.file, at.line), ""))) for n, at in found if at)
        self.of = {number: statement for number, statement in parsed if statement}
        self._texts = texts

    def at(self, place: Frame) -> ast.stmt | None:
        """Also of a line that launched something only through others."""
        return statement_of(self._texts.get((place.file, place.line), ""))

    def of_function(self, place: Frame) -> list[ast.stmt]:
        """Those of the lines of a line's function."""
        frames = ((self._view.place(number), each) for number, each in self.of.items())
        return [each for at, each in frames if at and (at.file, at.function) == (place.file, place.function)]

    def between(self, first: Frame, last: Frame) -> list[ast.stmt]:
        """Those of lines from the first on, before the last."""
        lines = sorted(line for file, line in self._texts if file == first.file)
        places = (Frame("", first.file, line) for line in lines if first.line <= line < last.line)
        return [statement for place in places if (statement := self.at(place))]

    def reading(self, number: int, names: set[str]) -> list[int]:
        """Lines of the same function that read one of these names."""
        function = self._view.function_of_line
        return [n for n, each in self.of.items() if function[n] == function[number] and reads(each, names)]

    def giving(self, number: int, name: str) -> dict[int, ast.stmt]:
        """Lines of the same function that give a name a value, or change it in place."""
        function = self._view.function_of_line
        same = {n: each for n, each in self.of.items() if function[n] == function[number]}
        return {n: each for n, each in same.items() if name in given_values(each)}

    @cached_property
    def _rows(self) -> dict[int, I64]:
        place = self._view.operation_place
        order = np.argsort(place, kind="stable")
        bounds = np.searchsorted(place[order], np.arange(self._view.lines + 1))
        return {n: order[bounds[n] : bounds[n + 1]].astype(np.int64) for n in self.of}

    def rows(self, number: int) -> I64:
        """What the line launched, also in backward."""
        return self._rows[number]
