# SPDX-License-Identifier: Apache-2.0
"""The compiled library as a file: what it needs, what it shows, and what it says where torch does not fit."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from profiling_lab.ops import _load

REPO = Path(__file__).resolve().parents[2]
ABI = (REPO / "csrc" / "torch_abi" / "abi.h").read_text()
Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def compiler() -> str:
    found = shutil.which("c++") or shutil.which("g++")
    if found is None:
        pytest.skip("needs a C++ compiler")
    return found


def run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


# The declarations


def conformance(compiler: str, include: Path, *options: str) -> subprocess.CompletedProcess[str]:
    assert torch.__file__ is not None
    official = Path(torch.__file__).parent / "include"
    if not (official / "torch" / "csrc" / "stable" / "c" / "shim.h").is_file():
        pytest.skip(f"torch {torch.__version__} was installed without its headers")
    return subprocess.run(
        [
            compiler,
            *("-std=c++20", "-fsyntax-only", "-DUSE_CUDA", f"-I{include}", f"-isystem{official}"),
            str(REPO / "csrc" / "torch_abi" / "conformance.cpp"),
            *options,
        ],
        capture_output=True,
        text=True,
    )


def test_declarations_equal_torchs_own(compiler: str) -> None:
    result = conformance(compiler, REPO / "csrc", "-Wall", "-Wextra", "-Werror")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("ours", "wrong", "function"),
    [
        ("aoti_torch_get_dim, (TensorHandle tensor, int64_t", "int32_t", "aoti_torch_get_dim"),
        ("torch_list_size, (ListHandle list, size_t", "int64_t", "torch_list_size"),
        ("aoti_torch_delete_tensor_object, (TensorHandle", "StringHandle", "aoti_torch_delete_tensor_object"),
    ],
)
def test_a_wrong_declaration_does_not_pass(
    compiler: str, tmp_path: Path, ours: str, wrong: str, function: str
) -> None:
    header = re.sub(r"\s+", " ", ours)
    assert header in ABI
    (tmp_path / "torch_abi").mkdir()
    changed = ABI.replace(header, header.rsplit(" ", 1)[0] + " " + wrong if " " in header else wrong)
    if header.rsplit("(", 1)[-1].count(" ") == 0:  # the type is the first word behind the bracket
        changed = ABI.replace(header, header.rsplit("(", 1)[0] + "(" + wrong)
    (tmp_path / "torch_abi" / "abi.h").write_text(changed)
    result = conformance(compiler, tmp_path)
    assert result.returncode != 0
    assert f"{function} differs from torch's own declaration" in result.stderr


# The file


@pytest.fixture
def library() -> str:
    return _load.library_path()


def test_needs_only_the_c_and_cpp_runtime(library: str) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("needs readelf (binutils)")
    needed = set(re.findall(r"NEEDED.*\[(.+?)\]", run("readelf", "-d", library)))
    allowed = {"libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
    glibc_before_2_34 = {"libdl.so.2", "libpthread.so.0", "librt.so.1"}
    assert needed <= allowed | glibc_before_2_34


def test_shows_two_functions_and_nothing_else(library: str) -> None:
    if shutil.which("nm") is None:
        pytest.skip("needs nm (binutils)")
    shown = {line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()}
    assert shown == {"pl_init", "pl_build_info"}
    wanted = {line.split()[-1].split("@")[0] for line in run("nm", "-D", "-u", library).splitlines()}
    of_torch_or_python = re.compile(r"^(aoti_|torch_|Py|_Py)|c10|_ZN2at|cuda")
    assert not [name for name in wanted if of_torch_or_python.search(name)]


def test_stays_loaded_and_names_no_folder_of_the_builder(library: str) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("needs readelf (binutils)")
    assert "NODELETE" in run("readelf", "-d", library)
    assert str(REPO).encode() not in Path(library).read_bytes()


def test_build_info_is_complete() -> None:
    info = _load.build_info()
    assert set(info) == {"version", "git", "compiler", "torch_floor", "cuda"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", info["version"])
    assert info["torch_floor"] == "2.10"
    if info["cuda"] is not None:
        assert set(info["cuda"]) == {"nvcc", "architectures", "cudart"}
        assert info["cuda"]["cudart"] == "static"
    assert _load.has_cuda_kernels() == (info["cuda"] is not None)


@pytest.mark.gpu
def test_the_library_for_a_gpu_has_cuda_kernels() -> None:
    assert _load.has_cuda_kernels()


# Loading


def test_initialising_again_changes_nothing(library: str) -> None:
    _load.load()
    again = ctypes.CDLL(library)
    again.pl_init.restype = ctypes.c_char_p
    for _ in range(3):
        assert again.pl_init(torch._C.__file__.encode()) == b""


def test_load_library_of_torch_is_enough(python: Python, library: str) -> None:
    """A program that knows nothing of our Python package: torch loads the file, the ops are there."""
    result = python(
        "import sys, torch\n"
        "torch.ops.load_library(sys.argv[1])\n"
        "x = torch.ones(2, 3)\n"
        "y = torch.ops.profiling_lab.heavy_layer_fast(x, *[torch.eye(3)] * 3, torch.zeros(3))\n"
        "torch.testing.assert_close(y, x.tanh())\n",
        library,
    )
    assert result.returncode == 0, result.stderr


def test_loading_before_torch_is_harmless(python: Python, library: str) -> None:
    result = python(
        "import ctypes, sys\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        "import torch\n"
        "library.pl_init.restype = ctypes.c_char_p\n"
        "assert library.pl_init(torch._C.__file__.encode()) == b''\n"
        "import profiling_lab.ops.heavy_layer\n",
        library,
    )
    assert result.returncode == 0, result.stderr


def test_two_copies_are_an_error_that_names_both(python: Python, library: str, tmp_path: Path) -> None:
    copy = tmp_path / Path(library).name
    shutil.copy(library, copy)
    result = python(
        "import ctypes, sys, torch\n"
        "import profiling_lab.ops.heavy_layer\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        "library.pl_init.restype = ctypes.c_char_p\n"
        "print(library.pl_init(torch._C.__file__.encode()).decode())\n"
        "profiling_lab.ops.heavy_layer(torch.ones(2, 3), *[torch.eye(3)] * 3, torch.zeros(3))\n",
        str(copy),
    )
    assert result.returncode == 0, result.stderr
    sentence = f"two copies of profiling_lab are loaded: {library} has registered the ops, so {copy} cannot."
    assert result.stdout.strip() == sentence


def test_ops_load_when_first_used(python: Python) -> None:
    result = python(
        "import sys\n"
        "import profiling_lab.ops\n"
        "from profiling_lab.ops import OPS, _load\n"
        "assert 'torch' not in sys.modules and 'heavy_layer' in OPS\n"
        "_load.build_info()\n"
        "assert 'torch' not in sys.modules\n"
        "from importlib import import_module\n"
        "module = import_module('profiling_lab.ops.heavy_layer')\n"
        "from profiling_lab.ops import heavy_layer, HeavyLayer\n"
        "assert heavy_layer is module.heavy_layer and HeavyLayer is module.HeavyLayer\n"
        "assert profiling_lab.ops.heavy_layer is heavy_layer\n"
        "try:\n"
        "    profiling_lab.ops.no_such_op\n"
        "except AttributeError as error:\n"
        "    assert 'no_such_op' in str(error)\n",
    )
    assert result.returncode == 0, result.stderr


# What does not fit


def mock_libtorch(
    compiler: str,
    folder: Path,
    version: tuple[int, int, int],
    leave_out: str = "",
    name: str = "mock_torch_C.so",
    answer: int = 1,
) -> Path:
    """A library with the names of LibTorch's functions and no torch behind them; each returns `answer`."""
    names = re.findall(r"X\([^,]+, (\w+),", ABI.split("#define PLAB_TORCH_OPTIONAL")[0])
    assert len(names) > 40
    packed = version[0] << 56 | version[1] << 48 | version[2] << 40
    lines = [f"unsigned long aoti_torch_abi_version(void) {{ return {packed}ul; }}"]
    lines += [
        f"int {function}(void) {{ return {answer}; }}"
        for function in names
        if function not in ("aoti_torch_abi_version", leave_out)
    ]
    source, mock = folder / "mock.c", folder / name
    source.write_text("\n".join(lines))
    run(compiler, "-x", "c", "-shared", "-fPIC", "-o", str(mock), str(source))
    return mock


@pytest.mark.parametrize(
    ("version", "leave_out", "sentence"),
    [
        ((2, 9, 1), "", "profiling_lab.ops needs PyTorch 2.10 or newer; found torch 2.9.1."),
        (
            (2, 9, 1),
            "torch_library_impl",
            "profiling_lab.ops needs PyTorch 2.10 or newer; found torch 2.9.1.",
        ),
        (
            (2, 10, 0),
            "torch_library_impl",
            "profiling_lab.ops needs PyTorch 2.10 or newer; the loaded torch lacks torch_library_impl.",
        ),
        (
            (2, 10, 0),
            "",
            "torch refused the ops of namespace profiling_lab: "
            "libtorch call failed: aoti_torch_library_init_def",
        ),
    ],
    ids=["too old", "too old and incomplete", "incomplete", "refuses"],
)
def test_a_torch_that_does_not_fit_is_one_sentence(
    compiler: str,
    python: Python,
    library: str,
    tmp_path: Path,
    version: tuple[int, int, int],
    leave_out: str,
    sentence: str,
) -> None:
    mock = mock_libtorch(compiler, tmp_path, version, leave_out)
    result = python(
        "import ctypes, sys\n"
        "mock = ctypes.CDLL(sys.argv[2])\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        "library.pl_init.restype = ctypes.c_char_p\n"
        "print(library.pl_init(sys.argv[2].encode()).decode())\n",
        library,
        str(mock),
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == sentence


def test_another_libtorch_was_loaded_first(
    compiler: str, python: Python, library: str, tmp_path: Path
) -> None:
    """The ops go to the torch that Python uses, whatever lies in the process by the same name."""
    mock = mock_libtorch(compiler, tmp_path, (2, 13, 0), name="libtorch_cpu.so", answer=0)
    result = python(
        "import ctypes, sys\n"
        "ctypes.CDLL(sys.argv[1])\n"
        "import torch\n"
        "from profiling_lab.ops import heavy_layer\n"
        "print(heavy_layer(torch.ones(2, 3), *[torch.eye(3)] * 3, torch.zeros(3)).shape)\n",
        str(mock),
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "torch.Size([2, 3])"


def test_ops_that_another_libtorch_has_got(
    compiler: str, python: Python, library: str, tmp_path: Path
) -> None:
    mock = mock_libtorch(compiler, tmp_path, (2, 13, 0), name="libtorch_cpu.so", answer=0)
    result = python(
        "import ctypes, sys\n"
        "ctypes.CDLL(sys.argv[1])\n"
        "ctypes.CDLL(sys.argv[2])\n"
        "import torch\n"
        "try:\n"
        "    from profiling_lab.ops import heavy_layer\n"
        "except ImportError as error:\n"
        "    print(error)\n",
        str(mock),
        library,
    )
    assert result.returncode == 0, result.stderr
    libtorch = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    assert result.stdout.strip() == (
        f"two copies of libtorch are loaded: the ops were registered with {mock}, "
        f"but torch runs on {libtorch}."
    )


def test_torch_that_is_not_loaded(python: Python, library: str) -> None:
    result = python(
        "import ctypes, sys\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        "library.pl_init.restype = ctypes.c_char_p\n"
        "print(library.pl_init(b'/no/such/_C.so').decode())\n",
        library,
    )
    assert result.stdout.strip() == (
        "profiling_lab.ops needs PyTorch 2.10 or newer; /no/such/_C.so is not loaded in this process."
    )


def test_torch_that_is_not_installed(python: Python) -> None:
    result = python(
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "try:\n"
        "    from profiling_lab.ops import heavy_layer\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    assert result.stdout.strip() == (
        "profiling_lab.ops needs PyTorch 2.10 or newer; it is not installed (pip install torch)."
    )


@pytest.fixture
def fresh_load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The loader as a new process has it."""
    for function in (_load.load, _load._library):
        function.cache_clear()
    yield monkeypatch
    for function in (_load.load, _load._library):
        function.cache_clear()


def test_an_old_torch_is_named(fresh_load: pytest.MonkeyPatch) -> None:
    fresh_load.setattr(torch, "__version__", "2.9.1+cpu")
    with pytest.raises(_load.OpsUnavailableError) as raised:
        _load.load()
    assert str(raised.value) == "profiling_lab.ops needs PyTorch 2.10 or newer; found torch 2.9.1+cpu."
    assert isinstance(raised.value, ImportError)
    assert raised.value.exit_code == 1


@pytest.mark.parametrize("version", ["2.10.0", "2.10.0a0+git1234", "2.13.0+cu130", "3.0.0"])
def test_newer_torch_is_taken(fresh_load: pytest.MonkeyPatch, version: str) -> None:
    fresh_load.setattr(torch, "__version__", version)
    _load.load()


def test_library_that_was_not_built(fresh_load: pytest.MonkeyPatch) -> None:
    fresh_load.setattr(_load, "find_spec", lambda name: None if name.endswith("_ops") else find_spec(name))
    with pytest.raises(_load.OpsUnavailableError) as raised:
        _load.load()
    assert str(raised.value) == (
        "profiling_lab._ops was not built; install profiling_lab again where a C++20 compiler is found."
    )


def test_library_that_is_damaged(fresh_load: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "_ops.abi3.so"
    broken.write_bytes(b"\x7fELF")
    fresh_load.setattr(_load, "library_path", lambda: str(broken))
    with pytest.raises(_load.OpsUnavailableError, match=rf"^{re.escape(str(broken))} cannot be loaded: "):
        _load.load()
