# SPDX-License-Identifier: Apache-2.0
"""sdist -> wheel -> import: what is published can be built and used by somebody who has nothing but it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdist")
    subprocess.run([sys.executable, "-m", "build", "--sdist", "--outdir", str(out), str(REPO)], check=True,
                   capture_output=True, text=True)  # fmt: skip
    return next(out.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the sdist alone, without nvcc, which is the quickest build."""
    work = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data") if sys.version_info >= (3, 12) else archive.extractall(work)
    source = next(p for p in work.iterdir() if p.is_dir())
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(work),
               "-C", "cmake.define.PROFILING_LAB_CUDA=OFF", str(source)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(work.glob("*.whl"))


def test_sdist_has_sources_tests_and_no_binaries(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for needed in (
        "CMakeLists.txt",
        "csrc/README.md",
        "profiling_lab/py.typed",
        "tests/conftest.py",
        "README.md",
    ):
        assert needed in names
    assert not [name for name in names if name.endswith((".so", ".o")) or name.startswith("build/")]


def test_wheel_has_the_three_compiled_parts_and_their_stubs(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for part in ("_analysis", "_recorder", "_ops"):
        assert [n for n in names if n.startswith(f"profiling_lab/{part}.") and n.endswith(".so")], part
    assert {"profiling_lab/_analysis.pyi", "profiling_lab/_recorder.pyi", "profiling_lab/py.typed"} <= names
    assert any(n.endswith("recorded/demo_h200.sqlite") for n in names), "the shipped H200 trace"
    assert not [n for n in names if n.startswith(("tests/", "csrc/"))]


def test_installed_wheel_imports_without_the_sources(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True, system_site_packages=False)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--no-deps", wheel], check=True, capture_output=True
    )
    # torch and the other dependencies come from this environment: downloading them again proves nothing.
    import numpy

    site = Path(numpy.__file__).parents[1]
    code = (
        "import sys, profiling_lab; assert 'torch' not in sys.modules; "
        "assert profiling_lab.__file__.startswith(sys.prefix), profiling_lab.__file__; "
        f"sys.path.append({str(site)!r}); "
        "import profiling_lab._analysis, profiling_lab._recorder, profiling_lab.ops; "
        "from profiling_lab.ops import heavy_layer; print('ok')"
    )
    # -E: a developer's PYTHONPATH leads to the sources.
    done = subprocess.run([python, "-E", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "ok", done.stderr


def test_cuda_on_without_nvcc_is_refused(tmp_path: Path) -> None:
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake on the PATH: pip brings one for its own builds alone")
    command = [cmake, "-S", str(REPO), "-B", str(tmp_path), "-DPROFILING_LAB_CUDA=ON"]
    command += ["-DPROFILING_LAB_ANALYSIS=OFF", "-DPROFILING_LAB_RECORDER=OFF"]
    command += [f"-DPROFILING_LAB_NVCC={tmp_path}/nvcc"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode != 0
    assert "PROFILING_LAB_CUDA=ON, but no nvcc was found" in done.stderr
