# SPDX-License-Identifier: Apache-2.0
"""Who may use whom, read from the #include and import lines."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
CPP = sorted(p for p in (REPO / "csrc").rglob("*") if p.suffix in {".h", ".cpp", ".c", ".cu", ".cuh"})
PYTHON = sorted((REPO / "profiling_lab").rglob("*.py"))

MAY_INCLUDE = {
    "trace": {"trace"},
    "analysis": {"analysis", "trace"},
    "recorder": {"recorder", "trace"},
    "cuda": {"cuda"},
    "torch_abi": {"torch_abi"},
    "ops": {"ops", "cuda", "torch_abi"},
}

# The lowest packages first; a package may import itself and what it names here (and profiling_lab.errors).
MAY_IMPORT = {
    "trace": {"_analysis"},
    "rules": {"_analysis", "trace"},
    "ranks": {"_analysis", "trace"},
    "report": {"ranks", "rules", "trace"},
    "export": {"_analysis", "trace"},
    "recording": {"_recorder", "trace"},
    "integrations": {"export", "recording", "report", "trace"},
    "ops": {"_ops"},
    "measure": set(),
    "models": {"exercises", "ops"},
    "doctor": {"_recorder", "_analysis", "ops", "recording", "report"},
    "demo": {"exercises", "measure", "models", "recording", "report", "trace"},
    "exercises": {
        "_analysis",
        "_recorder",
        "demo",
        "measure",
        "models",
        "ops",
        "recording",
        "report",
        "rules",
        "trace",
    },
    "utils": {"measure", "recording", "report", "trace"},
}


def includes(path: Path) -> list[tuple[str, bool]]:
    pattern = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.M)
    return [(name, mark == '"') for mark, name in pattern.findall(path.read_text())]


@pytest.mark.parametrize("path", CPP, ids=lambda p: str(p.relative_to(REPO)))
def test_includes_follow_the_layers(path: Path) -> None:
    layer = path.relative_to(REPO / "csrc").parts[0]
    for name, is_ours in includes(path):
        if not is_ours:
            continue
        target = name.split("/")[0] if "/" in name else layer
        assert target in MAY_INCLUDE[layer], f"{layer} may not include {name}"


@pytest.mark.parametrize("path", CPP, ids=lambda p: str(p.relative_to(REPO)))
def test_python_torch_and_cupti_stay_in_their_files(path: Path) -> None:
    where = path.relative_to(REPO / "csrc").as_posix()
    names = [name for name, _ in includes(path)]
    uses_python = any(
        n in {"Python.h", "frameobject.h"} or n.startswith(("pybind11/", "internal/")) for n in names
    )
    if uses_python:
        allowed = where.endswith("module.cpp") or where.startswith("recorder/python_")
        assert allowed, "Python headers belong into *module.cpp and recorder/python_* alone"
    if any(n.startswith(("torch/", "ATen/", "c10/")) for n in names):
        assert where == "torch_abi/conformance.cpp", "torch's headers are only for the conformance check"
    if any(n.startswith("cupti") for n in names):
        assert where.startswith("recorder/"), "CUPTI belongs to the recorder"


def imported_packages(path: Path) -> set[str]:
    """The first-level parts of profiling_lab that a module imports, wherever the import stands."""
    found: set[str] = set()
    package = ("profiling_lab", *path.relative_to(REPO / "profiling_lab").with_suffix("").parts)[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            stem = ".".join(part for part in (base, node.module) if part)
            modules = [f"{stem}.{alias.name}" for alias in node.names] if stem == "profiling_lab" else [stem]
        else:
            continue
        found |= {m.split(".")[1] for m in modules if m.startswith("profiling_lab.")}
    return found


@pytest.mark.parametrize("path", PYTHON, ids=lambda p: str(p.relative_to(REPO)))
def test_imports_follow_the_layers(path: Path) -> None:
    parts = path.relative_to(REPO / "profiling_lab").parts
    if len(parts) == 1 or parts[0] == "cli":
        return
    used = imported_packages(path) - {parts[0], "errors", "__version__"}
    assert "cli" not in used, "nobody imports the command line"
    extra = used - MAY_IMPORT[parts[0]]
    assert not extra, f"{parts[0]} may not import {sorted(extra)}"


def test_every_package_has_its_line_in_the_matrix() -> None:
    packages = {p.parent.name for p in (REPO / "profiling_lab").glob("*/__init__.py")} - {"cli"}
    assert packages <= set(MAY_IMPORT), f"say who {sorted(packages - set(MAY_IMPORT))} may import"
