# SPDX-License-Identifier: Apache-2.0
"""Who may use whom, read from the #include and import lines."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from of_each import of_each

REPO = Path(__file__).resolve().parents[1]
CPP = sorted(p for p in (REPO / "csrc").rglob("*") if p.suffix in {".h", ".cpp", ".c", ".cu", ".cuh"})
PYTHON = sorted((REPO / "profiling_lab").rglob("*.py"))
SOURCES = sorted(
    path
    for top in ("profiling_lab", "csrc", "benchmarks", "tests", "tools", "docs")
    for path in (REPO / top).rglob("*")
    if path.suffix in {".py", ".h", ".cpp", ".c", ".cu", ".cuh"}
)

MAY_INCLUDE = {
    "trace": {"trace"},
    "analysis": {"analysis", "trace"},
    "recorder": {"recorder", "trace"},
    "cuda": {"cuda"},
    "torch_abi": {"torch_abi"},
    "ops": {"ops", "cuda", "torch_abi"},
}

# The folders of csrc/recorder, the lowest first; files next to them may include them all.
RECORDER_MAY_INCLUDE: dict[str, set[str]] = {
    "system": set(),
    "spool": {"system"},
    "torch": {"system"},
    "nvtx": {"spool", "system"},
    "python": {"spool", "system"},
    "cupti": {"python", "spool", "system", "torch"},
}

# Folders of an op that hold one implementation each.
PATHS = ("cpu", "sm80", "sm90")

# The lowest packages first; a package may import itself, what it names here, and
# profiling_lab.errors and records, which use nothing.
EVERYBODYS = {"errors", "records", "__version__"}
MAY_IMPORT = {
    "trace": {"_analysis"},
    "analysis": {"_analysis", "trace"},
    "rules": {"_analysis", "analysis", "trace"},
    "report": {"analysis", "measure", "rules", "trace"},
    "export": {"_analysis", "analysis", "trace"},
    # what the command line prints, for programs: an analysis and its report in one call
    "api": {"analysis", "report", "rules", "trace"},
    "mcp": {"analysis", "api", "report", "trace"},
    # _child_start is next to it: importing the package costs a child 0.1 s
    # what operators must do, by their shapes; it needs torch alone
    "work": set(),
    "recording": {"_child_start", "_import_watch", "_recorder", "trace", "work"},
    "integrations": {"analysis", "export", "ops", "recording", "report", "trace"},
    "ops": {"_import_watch", "_ops"},
    "measure": set(),
    "models": {"ops"},
    "doctor": {"_recorder", "_analysis", "analysis", "ops", "recording", "report"},
    "demo": {"analysis", "measure", "recording", "report", "trace"},
    "exercises": {
        "_analysis",
        "_recorder",
        "analysis",
        "demo",
        "measure",
        "models",
        "ops",
        "recording",
        "report",
        "rules",
        "trace",
        "utils",
    },
    "utils": {"api", "measure", "recording", "report", "trace"},
}

# Lists of one kind may be long; everything else with more modules than this is a heap.
MOST_MODULES = 30
LISTS_OF_ONE_KIND = {"profiling_lab/cli", "profiling_lab/rules", "benchmarks/diagnosis/programs"}
LISTS_OF_ONE_KIND |= {"benchmarks/ranks/programs", "tests/cli", "tests/exercises", "tests/recorder"}
LISTS_OF_ONE_KIND |= {"tests/ops", "tests/rules"}

# Who may know a format: its readers, the line that chooses between them, and the recorder, which writes one.
KNOW_FORMATS = (
    "trace/nsys/",
    "trace/kineto/",
    "trace/rocprof/",
    "trace/snapshot/",
    "trace/xplane/",
    "trace/formats.py",
    "recording/",
)


def includes(path: Path) -> list[tuple[str, bool]]:
    pattern = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.M)
    return [(name, mark == '"') for mark, name in pattern.findall(path.read_text())]


@of_each(CPP)
def test_includes_follow_the_layers(path: Path) -> None:
    layer = path.relative_to(REPO / "csrc").parts[0]
    for name, is_ours in includes(path):
        if not is_ours:
            continue
        target = name.split("/")[0] if "/" in name else layer
        assert target in MAY_INCLUDE[layer], f"{layer} may not include {name}"
        part = path.relative_to(REPO / "csrc").parts[1]
        if layer == target == "recorder" and part in RECORDER_MAY_INCLUDE:
            allowed = RECORDER_MAY_INCLUDE[part] | {part}
            assert name.split("/")[1] in allowed, f"recorder/{part} may not include {name}"


def test_every_folder_of_the_recorder_has_its_line() -> None:
    folders = {p.name for p in (REPO / "csrc" / "recorder").iterdir() if p.is_dir()}
    assert folders == set(RECORDER_MAY_INCLUDE)


def includes_of_other_paths(where: str, names: list[str]) -> list[str]:
    """What a file of one of an op's paths (ops/<op>/cpu, sm80, sm90) includes from another one."""
    op, _, rest = where.removeprefix("ops/").partition("/")
    own = rest.split("/")[0]
    others = [f"ops/{op}/{path}/" for path in PATHS if path != own]
    return [name for name in names if own in PATHS and name.startswith(tuple(others))]


@of_each(CPP)
def test_paths_of_an_op_share_only_what_lies_above_them(path: Path) -> None:
    """The portable path runs where sm90's code is not built, and each is the other's oracle."""
    where = path.relative_to(REPO / "csrc").as_posix()
    assert not includes_of_other_paths(where, [name for name, _ in includes(path)])


def test_the_rule_of_paths_finds_what_it_forbids() -> None:
    softmax = "ops/attention/sm90/softmax.cuh"
    assert includes_of_other_paths("ops/attention/sm80/fwd_kernel.cuh", ["cstdint", softmax]) == [softmax]
    assert includes_of_other_paths("ops/attention/cpu/launch.h", [softmax]) == [softmax]
    assert includes_of_other_paths("ops/attention/dispatch_cuda.cpp", [softmax]) == []
    assert includes_of_other_paths("ops/attention/sm90/launch.cu", [softmax, "ops/attention/plan.h"]) == []


@of_each(CPP)
def test_python_torch_and_cupti_stay_in_their_files(path: Path) -> None:
    where = path.relative_to(REPO / "csrc").as_posix()
    names = [name for name, _ in includes(path)]
    uses_python = any(
        n in {"Python.h", "frameobject.h"} or n.startswith(("pybind11/", "internal/")) for n in names
    )
    if uses_python:
        allowed = where.endswith(("module.cpp", "module.h")) or where.startswith("recorder/python/")
        assert allowed, "Python headers belong into *module.cpp, module.h and recorder/python/ alone"
    if any(n.startswith(("torch/", "ATen/", "c10/")) for n in names):
        assert where == "torch_abi/conformance.cpp", "torch's headers are only for the conformance check"
    if any(n.startswith("cupti") for n in names):
        allowed = where.startswith("recorder/cupti/") and where.endswith("conformance.cpp")
        assert allowed, "CUPTI's headers are only for the conformance checks"
    if "recorder/cupti/abi.h" in names:
        assert where.startswith("recorder/cupti/"), "CUPTI's declarations belong into recorder/cupti/ alone"


def test_portable_kernels_do_not_include_sm90() -> None:
    """An op's portable/ runs where sm90/ is not built; sm90/ may use portable/."""
    for path in CPP:
        where = path.relative_to(REPO / "csrc").parts
        wrong = [name for name, _ in includes(path) if "sm90" in name.split("/")]
        assert not ("portable" in where and wrong), f"{'/'.join(where)} includes {wrong}"


def imported_modules(path: Path) -> set[str]:
    """The modules of profiling_lab that a module imports, wherever the import stands: `trace.columns`.

    A name from a package may be a module or what its __init__ defines, and then stands for the package.
    """
    found: set[str] = set()
    package = ("profiling_lab", *path.relative_to(REPO / "profiling_lab").with_suffix("").parts)[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            stem = ".".join(part for part in (base, node.module) if part)
            for alias in node.names:
                is_module = f"{stem}.{alias.name}" in MODULES or stem == "profiling_lab"
                found.add(f"{stem}.{alias.name}" if is_module else stem)
    return {name.removeprefix("profiling_lab.") for name in found if name.startswith("profiling_lab.")}


def module_name(path: Path) -> str:
    parts = path.relative_to(REPO).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in PYTHON}


@of_each(PYTHON)
def test_imports_follow_the_layers(path: Path) -> None:
    parts = path.relative_to(REPO / "profiling_lab").parts
    if len(parts) == 1 or parts[0] == "cli":
        return
    used = {name.split(".")[0] for name in imported_modules(path)} - {parts[0], *EVERYBODYS}
    assert not used & {"cli", "exercises"}, "nobody imports the command line or an exercise"
    extra = used - MAY_IMPORT[parts[0]]
    assert not extra, f"{parts[0]} may not import {sorted(extra)}"


def test_only_readers_know_a_format() -> None:
    for name, path in MODULES.items():
        where = path.relative_to(REPO / "profiling_lab").as_posix()
        if where.startswith(KNOW_FORMATS):
            continue
        folders = tuple(f.rstrip("/").replace("/", ".") for f in KNOW_FORMATS if f.startswith("trace/"))
        known = {m for m in imported_modules(path) if m.startswith(folders) and m != "trace.formats"}
        assert not known, f"{name} imports {sorted(known)}: what it needs belongs into trace/source.py"
        asked = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "isinstance"
            and ast.unparse(node.args[0]).split(".")[-1] == "source"
        ]
        assert not asked, f"{name} asks what kind of file a trace is"


def test_imports_make_no_circle() -> None:
    imports = {
        name: {f"profiling_lab.{m}" for m in imported_modules(path)} & set(MODULES) - {name}
        for name, path in MODULES.items()
    }
    while loose := {n for n in imports if not imports[n] or not any(n in used for used in imports.values())}:
        imports = {name: used - loose for name, used in imports.items() if name not in loose}
    assert not imports, f"these import each other: {imports}"


def test_no_folder_is_a_heap() -> None:
    """A header and its source are one module."""
    modules = {(path.parent, path.stem) for path in SOURCES if path.stem != "__init__"}
    counts = Counter(folder.relative_to(REPO).as_posix() for folder, _ in modules)
    heaps = {folder for folder, count in counts.items() if count > MOST_MODULES}
    assert heaps == LISTS_OF_ONE_KIND, "sort heaps into folders; what is none leaves the list"


def test_every_package_has_its_line_in_the_matrix() -> None:
    packages = {p.parent.name for p in (REPO / "profiling_lab").glob("*/__init__.py")} - {"cli"}
    assert packages <= set(MAY_IMPORT), f"say who {sorted(packages - set(MAY_IMPORT))} may import"


def test_an_op_or_model_has_its_name_alone() -> None:
    """An exercise's files are a learner's own program and may repeat it."""
    trees = {m: ast.parse(p.read_text()) for m, p in MODULES.items() if not re.search(r"exercises\.e\d", m)}
    public: set[str] = set()
    homes: dict[str, list[str]] = {}
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module)
            if not isinstance(node, ast.Assign) or ast.unparse(node.targets[0]) != "__all__":
                continue
            if module.split(".")[1:2] in (["ops"], ["models"]):
                public |= {n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)}
    assert "HeavyLayer" in homes.keys() & public
    twice = {name: found for name, found in homes.items() if name in public and len(found) > 1}
    assert not twice, f"one name, one class: {twice}"
