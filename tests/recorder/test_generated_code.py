# SPDX-License-Identifier: Apache-2.0
"""Launches of code that torch.compile wrote have the lines it was written from, backward too."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from recorder.program_lines import hide_the_driver

from profiling_lab.analysis.lines import lines
from profiling_lab.recording import generated_code
from profiling_lab.recording.meta_names import GENERATED_CODE
from profiling_lab.recording.tables.origin_frames import with_origins
from profiling_lab.trace import Trace

# The compiled code below is nothing but opaque operators: there is no C++ to compile.
CALL = "/cache/ab/generated.py"
NODE = np.dtype(
    [(name, np.uint32) for name in ("id", "parent", "function", "file", "line", "first_line", "depth")]
)


def test_a_compiled_model_is_charged_to_its_own_lines(run_warm: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
import torch
copy = launching_operator(fake)
class Layer(torch.nn.Module):
    def forward(self, x):
        return copy(x)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer()
    def forward(self, x):
        x = copy(x)
        x = self.layer(x)
        return x
model = torch.compile(Model())
x = torch.ones(64, requires_grad=True)
model(x).sum().backward()
with profiling_lab.record(OUT):
    loss = model(x).sum()
    loss.backward()
"""
    run_warm(code, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "somewhere")}, timeout=600)
    hide_the_driver(tmp_path / "out.sqlite")
    with Trace.open(tmp_path / "out.sqlite") as trace:
        rows = {(row.line - 1, row.function): row for row in lines(trace).rows}
    assert set(rows) == {(5, "Layer.forward"), (11, "Model.forward")}
    for row in rows.values():
        assert row.forward_ns > 0 and row.backward_ns > 0, row
        assert row.file.endswith("script.py")


def test_code_after_a_graph_break_has_the_names_of_the_program(run_warm: Any, tmp_path: Path) -> None:
    """torch.compile runs the rest of a function under a generated name."""
    pytest.importorskip("torch")
    run_warm(
        """
import torch
copy = launching_operator(fake)
@torch.compile
def work(x):
    y = copy(x)
    torch._dynamo.graph_break()
    return copy(copy(y))
x = torch.ones(64, requires_grad=True)
work(x).sum().backward()
with profiling_lab.record(OUT):
    work(x).sum().backward()
""",
        env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "somewhere")},
        timeout=600,
    )
    hide_the_driver(tmp_path / "out.sqlite")
    with Trace.open(tmp_path / "out.sqlite") as trace:
        rows = {
            (row.line - 1, row.function) for row in lines(trace).rows if row.forward_ns and row.backward_ns
        }
        functions = {frame.function for frame in trace.stacks.frames}
    assert rows == {(5, "work"), (7, "work")}
    assert not [name for name in functions if name.startswith("torch_dynamo_resume")]


def tree(*rows: tuple[int, int, str, str, int]) -> tuple[Any, Any]:
    """A capture with stack nodes (id, parent, function, file, line), callers first."""
    strings: list[str] = []
    nodes = np.zeros(len(rows), dtype=NODE)
    depth = {0: 0}
    for node, (number, parent, function, file, line) in zip(nodes, rows, strict=True):
        for name, text in (("function", function), ("file", file)):
            if text not in strings:
                strings.append(text)
            node[name] = strings.index(text)
        depth[number] = depth[parent] + 1
        node["id"], node["parent"], node["line"], node["depth"] = number, parent, line, depth[number]
    return SimpleNamespace(strings=strings, meta={}), nodes


def stack(spool: Any, nodes: Any, number: int) -> list[tuple[str, int, int]]:
    """(function, line, depth), innermost first."""
    by_id = {int(node["id"]): node for node in nodes}
    out = []
    while number:
        node = by_id[number]
        out.append((spool.strings[node["function"]], int(node["line"]), int(node["depth"])))
        number = int(node["parent"])
    return out


ROWS = (
    (1, 0, "main", "/a/train.py", 9),
    (2, 1, "call", CALL, 20),
    (3, 2, "run", "/t/launcher.py", 5),
    (4, 1, "call", CALL, 3),
)
ORIGINS = {
    "frames": [["/a/model.py", "Net.forward", 1, 7], ["/a/model.py", "Layer.forward", 11, 12]],
    "files": {CALL: [[10, [0]], [15, [0, 1]], [30, [0]]]},
}


def test_frames_are_put_below_the_generated_one_and_ids_stay() -> None:
    spool, nodes = tree(*ROWS)
    spool.meta[GENERATED_CODE] = json.dumps(ORIGINS)
    out = with_origins(spool, nodes)
    expected = [
        ("run", 5, 5),
        ("Layer.forward", 12, 4),
        ("Net.forward", 7, 3),
        ("call", 20, 2),
        ("main", 9, 1),
    ]
    assert stack(spool, out, 3) == expected
    assert stack(spool, out, 2) == expected[1:], "a launch of the generated line itself"
    assert stack(spool, out, 4) == [("call", 3, 2), ("main", 9, 1)], "before the first line that is known"
    assert len({int(node["id"]) for node in out}) == len(out) == len(ROWS) + 2


def test_without_generated_code_nothing_changes() -> None:
    spool, nodes = tree(*ROWS)
    assert with_origins(spool, nodes) is nodes
    spool.meta[GENERATED_CODE] = json.dumps({"frames": [], "files": {"/elsewhere.py": [[1, []]]}})
    assert (with_origins(spool, nodes) == nodes).all()


class Cache:
    """torch's own, in the form that it has."""

    linemaps = {CALL: [(4, 8), ("one", "two")], "/cache/empty.py": []}  # noqa: RUF012

    @staticmethod
    def stack_frames_for_code(path: str, line: int) -> list[dict[str, Any]] | None:
        here = {"filename": __file__, "name": "stack_frames_for_code", "line": _LINE}
        return [here, {"filename": "/gone.py", "name": "main", "line": 3}] if line == 4 else None


_LINE = Cache.stack_frames_for_code.__code__.co_firstlineno + 2


def test_origins_have_qualified_names_where_the_source_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        generated_code.sys.modules, "torch._inductor.codecache", SimpleNamespace(PyCodeCache=Cache)
    )
    known = json.loads(generated_code.origins()[GENERATED_CODE])
    assert known["files"] == {CALL: [[4, [0, 1]], [8, []]]}
    (outer, inner) = known["frames"]
    assert outer == ["/gone.py", "main", 0, 3]
    assert inner == [__file__, "Cache.stack_frames_for_code", _LINE - 1, _LINE]


def test_names_that_torch_compile_gives() -> None:
    assert generated_code.written_name("torch_dynamo_resume_in_forward_at_12") == "forward"
    assert (
        generated_code.written_name("build.<locals>.torch_dynamo_resume_in_a_step_at_7")
        == "build.<locals>.a_step"
    )
    assert generated_code.written_name("Model.forward") == "Model.forward"


def test_a_torch_that_keeps_it_elsewhere_has_no_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "torch._inductor.codecache"
    for other in (
        SimpleNamespace(),
        SimpleNamespace(PyCodeCache=None),
        SimpleNamespace(PyCodeCache=object()),
    ):
        monkeypatch.setitem(generated_code.sys.modules, name, other)
        assert generated_code.origins() == {}
    monkeypatch.delitem(generated_code.sys.modules, name)
    assert generated_code.origins() == {}
