# SPDX-License-Identifier: Apache-2.0
"""Mutants of a Python file: small changes of its syntax tree, made in its text.

Left out: annotations, docstrings and other strings, imports, what only type checkers read, zip's strict=,
which is an assertion, and the data of an op's case (shapes and formulas for tests and benchmarks).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mutation import Mutant, distinct, mutant

_COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_OPERATORS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*",
    ast.LShift: ">>", ast.MatMult: "*", ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip
_CASE = ("CASE", "OpCase", "TestShape", "Variant")


def mutants(file: str, text: str) -> list[Mutant]:
    return distinct(list(_Generator(file, text).of(ast.parse(text))))


class _Generator:
    def __init__(self, file: str, text: str) -> None:
        self.file, self.text = file, text
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.lines = text.splitlines()

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def _at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def replaced(self, node: ast.AST, new: str, within: ast.AST | None = None) -> Mutant:
        return mutant(self.file, self.text, *self.span(node), new, self.span(within or node))

    def code(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def of(self, node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr)) or self._is_left_out(node):
            return
        yield from getattr(self, f"of_{type(node).__name__}", lambda node: ())(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_comment"):
                continue
            children = value if isinstance(value, list) else [value]
            for child in children:
                if isinstance(child, ast.AST):
                    yield from self.of(child)

    def _is_left_out(self, node: ast.AST) -> bool:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in self.code(node.test):
            return True
        if isinstance(node, ast.FunctionDef):
            return node.name in ("_flops", "_bytes", "_variant", "_make_inputs", "_dispatcher_calls")
        if isinstance(node, ast.Assign):
            name = self.code(node.targets[0])
            return name in _CASE or name == "__all__"
        if isinstance(node, ast.keyword):
            return node.arg == "strict"
        return isinstance(node, ast.Call) and self.code(node.func) in _CASE

    # Conditions

    def _condition(self, test: ast.expr) -> Iterator[Mutant]:
        yield self.replaced(test, f"not ({self.code(test)})")
        yield self.replaced(test, "False")

    def of_If(self, node: ast.If) -> Iterator[Mutant]:
        yield from self._condition(node.test)

    def of_IfExp(self, node: ast.IfExp) -> Iterator[Mutant]:
        yield self.replaced(node.test, f"not ({self.code(node.test)})", node)

    def of_BoolOp(self, node: ast.BoolOp) -> Iterator[Mutant]:
        word = " or " if isinstance(node.op, ast.And) else " and "
        parts = [self.code(value) for value in node.values]
        yield self.replaced(node, word.join(f"({part})" for part in parts))
        joined = " and " if isinstance(node.op, ast.And) else " or "
        for i in range(len(parts)):
            rest = joined.join(parts[:i] + parts[i + 1 :])
            yield self.replaced(node, f"({rest})")

    def of_Compare(self, node: ast.Compare) -> Iterator[Mutant]:
        sides = [node.left, *node.comparators]
        for i, op in enumerate(node.ops):
            start, end = self.span(sides[i])[1], self.span(sides[i + 1])[0]
            between = self.text[start:end]
            head = between[: len(between) - len(between.lstrip(" )\n"))]
            tail = between[len(between.rstrip(" (\n")) :]
            new = f"{head}{_COMPARISONS[type(op)]}{tail}"
            yield mutant(self.file, self.text, start, end, new, self.span(node))

    def of_UnaryOp(self, node: ast.UnaryOp) -> Iterator[Mutant]:
        if isinstance(node.op, (ast.Not, ast.USub, ast.Invert)):
            yield self.replaced(node, f"({self.code(node.operand)})")

    # Values

    def of_BinOp(self, node: ast.BinOp) -> Iterator[Mutant]:
        start, end = self.span(node.left)[1], self.span(node.right)[0]
        between = self.text[start:end]
        head = between[: len(between) - len(between.lstrip(" )\n"))]
        tail = between[len(between.rstrip(" (\n")) :]
        new = _OPERATORS.get(type(node.op))
        if new is not None and not isinstance(node.left, ast.JoinedStr):
            yield mutant(self.file, self.text, start, end, f"{head}{new}{tail}", self.span(node))

    def of_Constant(self, node: ast.Constant) -> Iterator[Mutant]:
        if isinstance(node.value, bool):
            yield self.replaced(node, str(not node.value))
        elif isinstance(node.value, int):
            yield self.replaced(node, str(node.value + 1))
            yield self.replaced(node, f"({node.value - 1})")
        elif isinstance(node.value, float):
            yield self.replaced(node, repr(node.value * 2 + 1))

    def of_Call(self, node: ast.Call) -> Iterator[Mutant]:
        for keyword in (k for k in node.keywords if k.arg != "strict"):
            start, end = self.span(keyword)
            behind = self.text[end:].lstrip()
            if behind.startswith(","):
                end = self.text.index(",", end) + 1
            yield mutant(self.file, self.text, start, end, "", (start, end))

    # Statements

    def of_Return(self, node: ast.Return) -> Iterator[Mutant]:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield self.replaced(node, "return None")

    def of_Raise(self, node: ast.Raise) -> Iterator[Mutant]:
        yield self.replaced(node, "pass")

    def of_Expr(self, node: ast.Expr) -> Iterator[Mutant]:
        if not isinstance(node.value, (ast.Constant, ast.Yield)):
            yield self.replaced(node, "pass")

    def of_AugAssign(self, node: ast.AugAssign) -> Iterator[Mutant]:
        yield self.replaced(node, "pass")

    def of_Delete(self, node: ast.Delete) -> Iterator[Mutant]:
        yield self.replaced(node, "pass")

    def of_Assign(self, node: ast.Assign) -> Iterator[Mutant]:
        """Where the name has a value before, as in x = x.contiguous()."""
        target = node.targets[0]
        names = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        stored = {n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        if isinstance(target, (ast.Attribute, ast.Subscript)) or (stored and stored <= names):
            yield self.replaced(node, "pass")
