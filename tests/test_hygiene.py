# SPDX-License-Identifier: Apache-2.0
"""Rules of the house that a search can check."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from of_each import of_each

REPO = Path(__file__).resolve().parents[1]
SUFFIXES = {".py", ".pyi", ".h", ".cpp", ".c", ".cu", ".cuh", ".cmake", ".sh"}
LINES_AT_MOST = 500


def tracked_files() -> list[Path]:
    """Files under version control; in an unpacked sdist, every file outside of build folders."""
    try:
        listing = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, capture_output=True, check=True).stdout
        return [REPO / name for name in listing.decode().split("\0") if name and (REPO / name).is_file()]
    except (OSError, subprocess.CalledProcessError):
        return [p for p in REPO.rglob("*") if p.is_file() and "build" not in p.relative_to(REPO).parts]


SOURCES = [p for p in tracked_files() if p.suffix in SUFFIXES or p.name == "CMakeLists.txt"]
CODE = [p for p in SOURCES if p.suffix in {".h", ".cpp", ".c", ".cu", ".cuh"}]


def relative(path: Path) -> str:
    return path.relative_to(REPO).as_posix()


@of_each(SOURCES)
def test_file_opens_with_its_licence_and_is_short(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert not lines or any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:2])
    assert len(lines) <= LINES_AT_MOST


@of_each(CODE)
def test_cpp_rules(path: Path) -> None:
    text = path.read_text()
    where = relative(path)
    if where.startswith("csrc/") and not where.startswith("csrc/cuda/ptx/"):
        assert not re.search(r"\basm\s*(volatile)?\s*\(", text), "asm statements live in csrc/cuda/ptx"
    if where.startswith("csrc/"):
        assert not re.search(r"(?<![\w:.>])(exit|abort|printf)\s*\(", text), (
            "a library neither exits nor prints"
        )
    if where.startswith(
        ("profiling_lab/exercises/", "benchmarks/counters/")
    ):  # programs of one file, to be read
        assert "<<<" not in text or re.search(r"cuda(Get|PeekAt)LastError", text), (
            f"{where}: launches unchecked"
        )
        return
    for match in re.finditer(r"<<<", text):
        # The launch may span lines; its check stands within three lines after the call's end.
        rest = text[match.start() :]
        after = rest[rest.index(";") :].splitlines()[:4]
        assert "PLAB_CHECK_LAUNCH" in "\n".join(after), f"{where}: a launch without PLAB_CHECK_LAUNCH"


@of_each([p for p in SOURCES if p.suffix == ".py"])
def test_python_rules(path: Path) -> None:
    text = path.read_text()
    where = relative(path)
    stem = path.stem if path.stem != "__init__" else path.parent.name
    if where.startswith("profiling_lab/"):
        assert stem not in {"misc", "helpers", "common"}
        assert stem != "utils" or where == "profiling_lab/utils/__init__.py"
    speaks_to_people = (
        "profiling_lab/cli/",
        "profiling_lab/report/",
        "profiling_lab/exercises/e",
        "profiling_lab/utils/session.py",
        "benchmarks/",
        "tests/",
        "tools/",
    )
    if not where.startswith(speaks_to_people):
        assert not re.search(r"^\s*print\(", text, re.M), "only the command line and reporters print"
    if not where.startswith("tests/test_hygiene"):
        unfinished = r"\b(TO" + r"DO|FIX" + r"ME|XXX)\b|NotImplemented" + "Error"
        assert not re.search(unfinished, text), "unfinished work"


def test_benchmark_results_have_the_agreed_form() -> None:
    needed = {"benchmark", "case", "provider", "metric", "value", "unit", "gpu", "driver", "torch", "cudnn",
              "cuda", "git", "date", "run"}  # fmt: skip
    for path in sorted((REPO / "benchmarks" / "results").glob("*.jsonl")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            missing = needed - set(json.loads(line))
            assert not missing, f"{path.name}:{number} lacks {sorted(missing)}"


def test_every_results_file_has_a_producer_or_a_reader() -> None:
    scripts = [p.read_text() for folder in ("benchmarks", "tools") for p in (REPO / folder).rglob("*.py")]
    for path in sorted((REPO / "benchmarks" / "results").glob("*.jsonl")):
        word = re.compile(rf"\b{path.stem}\b")
        assert any(word.search(text) for text in scripts), f"nothing writes or reads {relative(path)}"


def test_no_trace_carries_an_environment() -> None:
    """nsys exports hold the whole environment of the traced process; none may travel with this repository."""
    import sqlite3

    for path in tracked_files():
        if path.suffix != ".sqlite":
            continue
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as file:
            tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "META_DATA_CAPTURE" in tables:
                rows = file.execute("SELECT count(*) FROM META_DATA_CAPTURE WHERE name LIKE '%ENVIRONMENT%'")
                assert rows.fetchone()[0] == 0, relative(path)
            if "TARGET_INFO_SYSTEM_ENV" in tables:
                rows = file.execute(
                    "SELECT count(*) FROM TARGET_INFO_SYSTEM_ENV WHERE name LIKE '%nvironment%'"
                )
                assert rows.fetchone()[0] == 0, relative(path)
