# SPDX-License-Identifier: Apache-2.0
"""What the compiled parts show to the process that loads them: their own few functions, nothing of libstdc++.

They share the process with libtorch. A weak or unique symbol (std::locale::id) of a libstdc++ inside of ours
that binds to another version's has crashed every recording where the compiler links it statically.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from package_root import PACKAGE_ROOT

REPO = Path(__file__).resolve().parents[1]
FAKE = REPO / "tests" / "recorder" / "fake_cupti" / "fake_cupti.cpp"
EXPORTED = {
    "_analysis": {"PyInit__analysis"},
    "_ops": {"pl_build_info", "pl_init"},
    # NVTX looks the two up by name: the module is its injection library.
    "_recorder": {"InitializeInjectionNvtx2", "InitializeInjectionNvtxExtension", "PyInit__recorder"},
}


def exported(package: Path, part: str) -> set[str]:
    """Names that `nm -D` finds defined, with the kind of each that is no plain function."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("needs nm of binutils")
    (library,) = package.glob(f"{part}.*.so")
    listing = subprocess.run(
        [nm, "-D", "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout
    symbols = (line.split() for line in listing.splitlines())
    return {name if kind == "T" else f"{kind} {name}" for _, kind, name in symbols}


@pytest.mark.parametrize("part", EXPORTED)
def test_only_what_others_look_up_is_exported(part: str) -> None:
    assert exported(PACKAGE_ROOT / "profiling_lab", part) == EXPORTED[part]


@pytest.fixture(scope="module")
def static_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a copy of the package whose two Python modules carry their own libstdc++ and libgcc."""
    cmake, compiler = shutil.which("cmake"), os.environ.get("CXX") or shutil.which("g++")
    if cmake is None or compiler is None:
        pytest.skip("needs cmake and g++")
    pybind11 = pytest.importorskip("pybind11")
    static = subprocess.run([compiler, "-print-file-name=libstdc++.a"], capture_output=True, text=True).stdout
    if not Path(static.strip()).is_absolute():
        pytest.skip("this compiler has no libstdc++.a")
    root = tmp_path_factory.mktemp("static")
    configure = [cmake, "-S", REPO, "-B", root / "build", f"-DPython_EXECUTABLE={sys.executable}",
                 f"-Dpybind11_DIR={pybind11.get_cmake_dir()}", "-DPROFILING_LAB_CUDA=OFF",
                 "-DPROFILING_LAB_OPS=OFF", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0",
                 "-DCMAKE_MODULE_LINKER_FLAGS=-static-libstdc++ -static-libgcc"]  # fmt: skip
    build = [cmake, "--build", root / "build", "--parallel", str(os.cpu_count() or 1)]
    for command in (configure, build):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    package = root / "site" / "profiling_lab"
    shutil.copytree(
        PACKAGE_ROOT / "profiling_lab", package, ignore=shutil.ignore_patterns("*.so", "exercises")
    )
    for library in (root / "build").rglob("*.so"):
        shutil.copy(library, package)
    return package


@pytest.mark.slow
@pytest.mark.parametrize("part", ["_analysis", "_recorder"])
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


@pytest.mark.slow
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
