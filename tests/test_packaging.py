# SPDX-License-Identifier: Apache-2.0
"""sdist -> wheel -> import: what is published can be built and used without anything else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from test_exports import EXPORTED, exported

REPO = Path(__file__).resolve().parents[1]
FAKE = REPO / "tests" / "recorder" / "fake_cupti" / "fake_cupti.cpp"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdist")
    subprocess.run([sys.executable, "-m", "build", "--sdist", "--outdir", str(out), str(REPO)], check=True,
                   capture_output=True, text=True)  # fmt: skip
    return next(out.glob("*.tar.gz"))


def build_wheel(source: Path, to: Path, link: str = "") -> Path:
    """As pip builds it, isolated; without nvcc and the optimiser, which is the quickest build."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(to),
               "-C", "cmake.define.PROFILING_LAB_CUDA=OFF", "-C", "cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O0",
               "-C", f"cmake.define.CMAKE_MODULE_LINKER_FLAGS={link}", str(source)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(to.glob("*.whl"))


@pytest.fixture(scope="module")
def source(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the sdist holds, unpacked."""
    work = tmp_path_factory.mktemp("source")
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data") if sys.version_info >= (3, 12) else archive.extractall(work)
    return next(p for p in work.iterdir() if p.is_dir())


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the sdist alone."""
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel. Dependencies come from this one: another download
    proves nothing."""
    root = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(root, with_pip=True, system_site_packages=False)
    python = root / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--no-deps", wheel], check=True, capture_output=True
    )
    import numpy

    site = next((root / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")
    return root / "bin"


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


def test_what_is_compiled_needs_the_systems_libraries_alone(wheel: Path, tmp_path: Path) -> None:
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("needs readelf of binutils")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    for library in tmp_path.rglob("*.so"):
        text = subprocess.run([readelf, "-d", library], capture_output=True, text=True, check=True).stdout
        needed = {name.split(".so")[0] for name in re.findall(r"NEEDED.*\[(.*)\]", text)}
        allowed = {"libc", "libm", "libdl", "libpthread", "librt", "libgcc_s", "libstdc++"}
        assert {name for name in needed if not name.startswith("ld-linux")} <= allowed, library.name
        assert "RUNPATH" not in text and "RPATH" not in text, (
            f"{library.name} looks for libraries in a folder"
        )


def test_auditwheel_calls_it_manylinux(wheel: Path) -> None:
    pytest.importorskip("auditwheel")
    done = subprocess.run([sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r'"manylinux_2_\d+_\w+"', done.stdout), done.stdout


def test_a_second_build_compiles_nothing(source: Path, wheel: Path, tmp_path: Path) -> None:
    """pip's isolated environment has another name each time; no command may depend on it."""
    (log,) = source.glob("build/*/.ninja_log")

    def compiled() -> set[str]:
        """Ninja's notes of what it made: when, and the file; not its look for new files each time."""
        return {line for line in log.read_text().splitlines() if ".o\t" in line or ".so\t" in line}

    before = compiled()
    assert before
    build_wheel(source, tmp_path)
    assert compiled() == before


def test_installed_wheel_imports_without_the_sources(installed: Path, tmp_path: Path) -> None:
    code = (
        "import sys, profiling_lab; assert 'torch' not in sys.modules; "
        "assert profiling_lab.__file__.startswith(sys.prefix), profiling_lab.__file__; "
        "import profiling_lab._analysis, profiling_lab._recorder, profiling_lab.ops; "
        "from profiling_lab.ops import heavy_layer; print('ok')"
    )
    # -E: a developer's PYTHONPATH leads to the sources.
    command = [installed / "python", "-E", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "ok", done.stderr


def test_the_demo_runs_without_a_compiler(installed: Path, tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CC", "CXX")
    }
    done = subprocess.run(
        [installed / "profiling-lab", "demo"],
        env={**environment, "PATH": str(installed), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "forward" in done.stdout


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


def test_an_nvcc_that_cannot_compile_here_leaves_the_cpu_part(tmp_path: Path) -> None:
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake on the PATH: pip brings one for its own builds alone")
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho unsupported GNU version >&2\nexit 1\n")
    nvcc.chmod(0o755)
    command = [cmake, "-S", str(REPO), "-B", str(tmp_path / "build"), f"-DPROFILING_LAB_NVCC={nvcc}"]
    command += ["-DPROFILING_LAB_ANALYSIS=OFF", "-DPROFILING_LAB_RECORDER=OFF"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert "unsupported GNU version" in done.stdout
    assert f"_ops ON (CPU only; {nvcc} does not work here)" in done.stdout


# A compiler may link libstdc++ statically, which has crashed every recording: tests/test_exports.py says why.


@pytest.fixture(scope="module")
def static_package(source: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with libstdc++ and libgcc inside of its compiled parts: linked anew, not compiled. Only the
    tests below use it: a wheel that is built later links again."""
    compiler = os.environ.get("CXX") or "g++"
    static = subprocess.run([compiler, "-print-file-name=libstdc++.a"], capture_output=True, text=True).stdout
    if not Path(static.strip()).is_absolute():
        pytest.skip("this compiler has no libstdc++.a")
    root = tmp_path_factory.mktemp("static")
    with zipfile.ZipFile(build_wheel(source, root, "-static-libstdc++ -static-libgcc")) as archive:
        archive.extractall(root / "site")
    package = root / "site" / "profiling_lab"
    libraries = list(package.glob("*.so"))
    assert len(libraries) == 3 and not any(b"libstdc++.so" in each.read_bytes() for each in libraries)
    return package


@pytest.mark.parametrize("part", EXPORTED)
def test_a_static_libstdcpp_is_not_visible(static_package: Path, part: str) -> None:
    assert exported(static_package, part) == EXPORTED[part]


RECORDS = """
import sys, torch, profiling_lab, profiling_lab.recording
from fake_driver import *
fake = Fake()
with profiling_lab.record(sys.argv[1]) as recorder:
    fake.kernel("_ZN2at6native4fillIfEEvPT_i")
assert recorder.summary.kernels == 1, recorder.summary
try:  # an exception of C++, through pybind11's own registry of translators
    from profiling_lab import _recorder
    _recorder.read_spool(sys.argv[1])
except Exception as error:
    print(type(error).__name__)
print(_recorder.__file__)
"""


def test_records_with_a_static_libstdcpp_next_to_torchs(static_package: Path, tmp_path: Path) -> None:
    fake = tmp_path / "libfake_cupti.so"
    subprocess.run([os.environ.get("CXX") or "g++", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden",
                    f"-I{REPO / 'csrc'}", FAKE, "-o", fake], check=True)  # fmt: skip
    path = os.pathsep.join([str(static_package.parent), str(REPO / "tests" / "recorder")])
    done = subprocess.run(
        [sys.executable, "-c", RECORDS, tmp_path / "out.sqlite"],
        env={**os.environ, "PYTHONPATH": path, "PROFILING_LAB_CUPTI": str(fake)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(static_package) in done.stdout
    listed = [sys.executable, "-m", "profiling_lab", "kernels", tmp_path / "out.sqlite"]
    done = subprocess.run(
        listed, env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0 and "fill" in done.stdout, done.stdout + done.stderr
