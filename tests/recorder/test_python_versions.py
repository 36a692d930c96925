# SPDX-License-Identifier: Apache-2.0
"""Every CPython lays out its frames differently: the stacks are built and checked for each one found here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
SOURCES = REPO / "csrc" / "recorder" / "python"
SHAPES = Path(__file__).with_name("python_stack_shapes.py")
SAMPLES = Path(__file__).with_name("python_samples.py")
START = """
from stacks_only import python_stacks
try:
    python_stacks.start()
except RuntimeError as error:
    print(error)
"""
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.13t")  # t: built without a GIL

C_SOURCES = sorted(SOURCES.glob("*.c"))
CPP_SOURCES = [
    *sorted(SOURCES.glob("*.cpp")),
    Path(__file__).with_name("stacks_only.cpp"),
]


def interpreters(version: str) -> Iterator[Path]:
    """Pythons of this version on PATH and under pyenv, newest first."""
    if on_path := shutil.which(f"python{version}"):
        yield Path(on_path)
    pyenv, free = Path.home() / ".pyenv" / "versions", version.endswith("t")
    yield from sorted(pyenv.glob(f"{version.rstrip('t')}.*{'t' * free}/bin/python"), reverse=True)


def facts(python: Path, free_threaded: bool) -> dict[str, Any] | None:
    """Include folder and module suffix; None where this is the other kind of build or has no headers."""
    program = (
        "import json, sysconfig; c = sysconfig.get_config_var; "
        "print(json.dumps([sysconfig.get_paths()['include'], c('EXT_SUFFIX'), bool(c('Py_GIL_DISABLED'))]))"
    )
    done = subprocess.run([python, "-c", program], capture_output=True, text=True)
    if done.returncode != 0:
        return None
    include, suffix, is_free_threaded = json.loads(done.stdout)
    if is_free_threaded != free_threaded or not (Path(include) / "Python.h").is_file():
        return None
    return {"include": include, "suffix": suffix}


def installed(version: str) -> tuple[Path, dict[str, Any]]:
    """A Python of this version to build for, and its facts; skips where there is none."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is needed to build the stacks for another Python")
    for python in interpreters(version):
        if (about := facts(python, version.endswith("t"))) is not None:
            return python, about
    pytest.skip(f"Python {version} with its headers is not installed here")


def build(about: dict[str, Any], folder: Path) -> None:
    pybind11 = pytest.importorskip(
        "pybind11", reason="pybind11 is needed to build the stacks for another Python"
    )
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden"]
    flags += [f"-I{REPO / 'csrc'}", f"-isystem{about['include']}", f"-isystem{pybind11.get_include()}"]
    # As one file, which has pybind11's headers once. sampler.cpp repeats a name of stacks.cpp.
    alone = SOURCES / "sampler.cpp"
    together = folder / "together.cpp"
    together.write_text("".join(f'#include "{path}"\n' for path in CPP_SOURCES if path != alone))
    objects = []
    for source in [*C_SOURCES, alone, together]:
        compiler = ["gcc"] if source.suffix == ".c" else ["g++", "-std=c++20"]
        made = folder / f"{source.name}.o"
        subprocess.run([*compiler, *flags, "-c", source, "-o", made], check=True)
        objects.append(made)
    subprocess.run(["g++", "-shared", *objects, "-o", folder / f"stacks_only{about['suffix']}"], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_stacks_of_this_python(version: str, tmp_path: Path) -> None:
    python, about = installed(version)
    free = version.endswith("t")
    build(about, tmp_path)
    done = subprocess.run(
        [python, SHAPES, tmp_path, "stacks_only"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["python"].startswith(version.rstrip("t"))
    wrong = {name: shape["differences"] for name, shape in report["shapes"].items() if shape["differences"]}
    assert wrong == {}
    assert all(shape["checked"] >= 3 for shape in report["shapes"].values())
    assert report["line_tables"] == []
    assert report["addresses_reused"] > 1000 or free, "free-threaded Python 3.13 keeps all code alive"
    assert report["reuse_differences"] == []
    assert report["disturbed"] >= 1000
    assert report["disturbed_differences"] == []
    assert report["sub_interpreter"] in ("counted and left out", "the line that entered it", "not available")
    assert all(nanoseconds < 50_000 for nanoseconds in report["cost_ns"].values())
    check_samples(python, tmp_path)
    if free:
        check_without_the_lock(python, tmp_path)


def check_without_the_lock(python: Path, folder: Path) -> None:
    """Loading a module like ours switches the lock on. Who forbids that has no stacks, and is told why."""
    done = subprocess.run([python, "-Xgil=0", "-c", START], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Python runs without its lock")


def check_samples(python: Path, folder: Path) -> None:
    """The main thread is found where it computes and where it waits, the other one where it waits."""
    done = subprocess.run([python, SAMPLES, folder], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    for act, found in report["found"].items():
        assert found[f"{act} main"] >= 20, report
        assert found[f"other {report['other']}"] >= 29, report
        assert set(found) <= {f"{act} main", f"other {report['other']}", "<module> main"}, report


@pytest.mark.slow
def test_a_python_newer_than_the_known_layouts_is_reported(tmp_path: Path) -> None:
    python, about = installed("3.15")
    build(about, tmp_path)
    done = subprocess.run([python, "-c", START], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Python 3.15.") and "newer than the frame layouts known" in done.stdout


def test_the_running_python_is_among_the_versions() -> None:
    assert sysconfig.get_python_version() in VERSIONS
