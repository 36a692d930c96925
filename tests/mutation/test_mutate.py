# SPDX-License-Identifier: Apache-2.0
"""tools/mutate.py: its mutants, its verdicts, and explanations that still belong to code."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tools"))

import mutate  # noqa: E402
from mutation import Mutant, cpp_mutants, python_mutants, tests_of, trees  # noqa: E402

PYTHON = '''
"""A docstring with 1 + 1."""
from __future__ import annotations


def f(x: int = 2, *, deep: bool = False) -> int:
    if x < 3 and not deep:  # 4 < 5
        raise ValueError(f"x is {x + 1}")
    x = x + 7
    g(x, key=1.5)
    return x
'''

CPP = """
// a < b
#include <vector>
#ifdef PLAB_HAS_CUDA
int device(int a) { return a + 1; }
#endif
std::vector<int> f(int a, const int* b) {
  if (a < 3 && !b) return {};
  PLAB_CHECK(a <= 4, "a < 5");
  return {a * 2};
}
"""


def changed(text: str, mutants: list[Mutant]) -> set[str]:
    """The one line in which each mutant differs from the text."""
    lines = set()
    for m in mutants:
        other = (text[: m.start] + m.new + text[m.end :]).splitlines()
        (line,) = [new.strip() for old, new in zip(text.splitlines(), other, strict=True) if old != new]
        lines.add(line)
    return lines


def test_mutants_of_python() -> None:
    found = python_mutants.mutants("f.py", PYTHON)
    assert changed(PYTHON, found) == {
        "def f(x: int = 3, *, deep: bool = False) -> int:",
        "def f(x: int = (1), *, deep: bool = False) -> int:",
        "def f(x: int = 2, *, deep: bool = True) -> int:",
        "if not (x < 3 and not deep):  # 4 < 5",
        "if False:  # 4 < 5",
        "if (x < 3) or (not deep):  # 4 < 5",
        "if (x < 3):  # 4 < 5",
        "if (not deep):  # 4 < 5",
        "if x <= 3 and not deep:  # 4 < 5",
        "if x < 4 and not deep:  # 4 < 5",
        "if x < (2) and not deep:  # 4 < 5",
        "if x < 3 and (deep):  # 4 < 5",
        "pass",
        "x = x - 7",
        "x = x + 8",
        "x = x + (6)",
        "g(x, )",
        "g(x, key=4.0)",
        "return None",
    }
    for m in found:
        ast.parse(PYTHON[: m.start] + m.new + PYTHON[m.end :])


def test_mutants_of_cpp() -> None:
    assert changed(CPP, cpp_mutants.mutants("f.cpp", CPP)) == {
        "if (a <= 3 && !b) return {};",
        "if (a < 4 && !b) return {};",
        "if (a < 2 && !b) return {};",
        "if (a < 3 || !b) return {};",
        "if (a < 3 && b) return {};",
        "if (!(a < 3 && !b)) return {};",
        "if (false) return {};",
        'PLAB_CHECK(a < 4, "a < 5");',
        'PLAB_CHECK(a <= 5, "a < 5");',
        'PLAB_CHECK(a <= 3, "a < 5");',
        ";",
        "return {a / 2};",
        "return {a * 3};",
        "return {a * 1};",
    }


def test_a_mutant_is_named_by_its_line_and_change_not_by_its_number() -> None:
    before = {m.key for m in python_mutants.mutants("f.py", PYTHON)}
    assert before == {m.key for m in python_mutants.mutants("f.py", "\n\n" + PYTHON)}
    assert len(before) == len(python_mutants.mutants("f.py", PYTHON))


@pytest.mark.parametrize("file", mutate.files(cpp=False))
def test_every_mutant_of_the_ops_is_python(file: str) -> None:
    text = (REPO / file).read_text()
    found = mutate.mutants_of(file)
    assert len({m.key for m in found}) == len(found)
    for m in found[::7]:
        ast.parse(text[: m.start] + m.new + text[m.end :])


def test_explanations_belong_to_code() -> None:
    """A line that was changed takes its explanation with it."""
    exist: dict[tuple[str, str], set[str]] = {}
    for (file, code), changes in mutate.explained().items():
        if (file, code) not in exist:
            exist.update({(m.file, m.code): set() for m in mutate.mutants_of(file)})
            for m in mutate.mutants_of(file):
                exist[m.file, m.code].add(m.change)
        assert (file, code) in exist, f"explained.toml: {file} has no line {code!r}"
        for change, reason in changes.items():
            assert change == "*" or change in exist[file, code], f"explained.toml: {file}: no {change!r}"
            assert len(reason.split()) > 3 and "\n" not in reason


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "profiling_lab").mkdir()
    (folder / "profiling_lab" / "__init__.py").write_text("")
    (folder / "profiling_lab" / "code.py").write_text("def clamp(x):\n    return max(x, 3)\n")
    (folder / "tests").mkdir()
    test = """
        from profiling_lab.code import clamp
        def test_low():
            assert clamp(0) == 3
        def test_high():
            assert clamp(9) == 9
    """
    (folder / "tests" / "test_code.py").write_text(textwrap.dedent(test))
    os.utime(folder / "profiling_lab" / "code.py", (1e9, 1e9))  # older than any mutant
    subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


def test_verdicts(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(project), *sys.path])
    trees._CONTEXT.set_forkserver_preload(["pytest", "mutation.trees"])  # torch is of no use here
    source = project / "profiling_lab" / "code.py"
    text = source.read_text()
    tree = trees.Tree(project, tmp_path / "tree")
    high, low = "tests/test_code.py::test_high", "tests/test_code.py::test_low"
    four = next(m for m in python_mutants.mutants("profiling_lab/code.py", text) if m.new == "4")
    assert tree.outcome(None, [low, high], 60) == ("survived", "")
    assert tree.outcome(four, [high], 60) == ("survived", "")
    assert tree.outcome(four, [high, low], 60) == ("killed", low)
    endless = Mutant(four.file, 2, text.index("return"), len(text), "while True: pass\n", "", "")
    assert tree.outcome(endless, [low], 2) == ("timeout", "")
    broken = Mutant(four.file, 2, 0, len(text), "1 / 0\n", "", "")
    assert tree.outcome(broken, [low], 60) == ("killed", "import of tests/test_code.py")
    assert tree.outcome(four, [], 60) == ("unreached", "")
    assert tree.outcome(four, ["tests/test_code.py::gone"], 60)[0] == "error"
    assert source.read_text() == text == (tree.root / "profiling_lab" / "code.py").read_text()


def test_what_was_changed_is_newer_than_what_was_built(project: Path, tmp_path: Path) -> None:
    """A build goes by times, and a change may be older than the tree's last build."""
    source = project / "code.cpp"
    source.write_text("int f();\n")
    tree = trees.Tree(project, tmp_path / "tree")
    copy, built = tree.root / "code.cpp", tree.root / "built"
    built.write_text("")
    source.write_text("int g();\n")
    os.utime(source, (1e9, 1e9))
    trees.Tree(project, tmp_path / "tree")
    assert copy.read_text() == "int g();\n"
    assert copy.stat().st_mtime >= built.stat().st_mtime


def test_a_mutant_of_which_the_compiler_makes_the_same_library_needs_no_test(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    tree = trees.Tree(project, tmp_path / "tree")
    source = tree.root / "csrc" / "code.cpp"
    source.parent.mkdir()
    source.write_text("int f() { return 2 * 3; }\n")
    library = tree.root / "profiling_lab" / "_ops.abi3.so"

    def build(tree: trees.Tree) -> bool:
        command = ["g++", "-O1", "-shared", "-fPIC", str(source), "-o", str(library)]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    monkeypatch.setattr(trees.Tree, "build", build)
    assert tree.build()
    tree.unchanged = tree.library()
    monkeypatch.setattr(trees.Tree, "_run", lambda *_: ("survived", ""))

    def outcome(new: str) -> str:
        text = source.read_text()
        at = text.index("2 * 3")
        return tree.outcome(Mutant("csrc/code.cpp", 1, at, at + 5, new, "", ""), ["a test"], 60)[0]

    assert outcome("3 + 3") == "same"
    assert outcome("3 + 4") == "survived"
    assert outcome("3 +") == "invalid"


def test_tests_are_those_of_the_line_the_quick_ones_first(tmp_path: Path) -> None:
    noted = {
        "seconds": {"t.py::a[1]": 3.0, "t.py::a[2]": 1.0, "t.py::b": 2.0, "t.py::c": 0.1},
        "lines": {
            "profiling_lab/f.py": {
                "4": ["t.py::a[1]", "t.py::a[2]", "t.py::b", "t.py::gone"],
                "7": ["t.py::c"],
                "1": [""],
            }
        },
    }
    (tmp_path / "1.json").write_text(json.dumps(noted))
    record = tests_of.Record(tmp_path)
    at = {line: Mutant("profiling_lab/f.py", line, 0, 0, "", "", "") for line in (1, 5, 7)}
    assert record.tests_of(at[5], 100) == ["t.py::a[2]", "t.py::b", "t.py::a[1]"]
    assert record.tests_of(at[5], 3.5) == ["t.py::a[2]", "t.py::b"]
    assert record.tests_of(at[5], 0) == ["t.py::a[2]"]  # one at least
    assert record.tests_of(at[1], 0) == ["t.py::c"]  # what runs at import, every user of the file sees
    assert record.tests_of(at[7], 100) == ["t.py::c"]


def test_summary_tells_explained_from_unexplained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutate, "REPO", tmp_path)
    monkeypatch.setattr(mutate, "EXPLAINED", tmp_path / "explained.toml")
    (tmp_path / "f.py").write_text(PYTHON)
    found = python_mutants.mutants("f.py", PYTHON)
    results = tmp_path / "results.jsonl"

    def write(*outcomes: str) -> None:
        rows = (dict(zip(("file", "code", "change"), m.key, strict=True)) for m in found)
        lines = [json.dumps({**row, "line": 1, "outcome": o}) for row, o in zip(rows, outcomes, strict=False)]
        results.write_text("\n".join(lines))

    entry = {"file": "f.py", "code": found[0].code, "change": found[0].change, "reason": "it is for a test"}
    written = "[[explained]]\n" + "".join(f"{name} = {json.dumps(text)}\n" for name, text in entry.items())
    (tmp_path / "explained.toml").write_text(written)
    write("survived", "killed", "timeout", "invalid", "same")
    assert mutate.summary(results) == 0
    assert "| all | 3 | 1 | 1 | 1 | 0 | 0 | 0 |\nunexplained: 0 of 3, 0.0%" in capsys.readouterr().out
    write("survived", "survived", "unreached")
    assert mutate.summary(results) == 1
    shown = capsys.readouterr().out
    assert "unexplained: 2 of 3, 66.7%" in shown and f"survived: f.py:1: {found[1].change}" in shown
