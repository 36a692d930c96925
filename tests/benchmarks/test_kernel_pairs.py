# SPDX-License-Identifier: Apache-2.0
"""benchmarks/counters/kernel_pairs.cu: both kernels of a pair compute the same, and without spilling."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import REPO

from profiling_lab.exercises import cuda_build

SOURCE = REPO / "benchmarks" / "counters" / "kernel_pairs.cu"
PAIRS = re.findall(r"^  PAIR\((\w+), (\w+),", SOURCE.read_text(), re.M)
# of a call: how many numbers go in, the launcher's n, how many numbers come out
SIZES = {"chase": (4096, 700, 700), "copy_narrow": (64, 256, 64), "sum_at_barriers": (20 * 256, 20, 20)}
SIZES |= {"multiply_untiled": (64 * 64, 64, 64 * 64), "table_conflicts": (1024, 300, 300)}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if cuda_build.host_compiler() is None:
        pytest.skip("there is no C++ compiler on the PATH")
    folder = tmp_path_factory.mktemp("pairs")
    source = folder / "pairs.cu"
    source.write_text(SOURCE.read_text().partition("static void need(")[0])
    return ctypes.CDLL(str(cuda_build.for_cpu(source, folder / "pairs.so")))


def test_there_are_eight_pairs() -> None:
    assert len(PAIRS) == 8 and SIZES.keys() <= {fault for fault, _ in PAIRS}


@pytest.mark.parametrize(("fault", "repaired"), PAIRS)
def test_both_kernels_of_a_pair_compute_the_same(fault: str, repaired: str, library: ctypes.CDLL) -> None:
    numbers, n, results = SIZES.get(fault, (700, 700, 700))
    text = re.search(rf"int run_{fault}\(const (\w+)\*", SOURCE.read_text())
    assert text is not None
    kind = {"int": np.int32, "float": np.float32}[text[1]]
    random = np.random.default_rng(0)
    given = random.permutation(numbers).astype(kind) if kind is np.int32 else random.random(numbers, kind)
    out = [np.full(results, -1, kind) for _ in range(2)]
    for name, each in zip((fault, repaired), out, strict=True):
        call = library[f"run_{name}"]
        assert call(given.ctypes.data_as(ctypes.c_void_p), each.ctypes.data_as(ctypes.c_void_p), n) == 0
    np.testing.assert_allclose(out[0], out[1], rtol=2e-5)
    assert len(np.unique(out[0])) > results // 4, "a kernel that writes one number computes nothing"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
def test_it_compiles_without_spills_and_the_narrow_copy_stays_narrow(tmp_path: Path) -> None:
    base = ["nvcc", "-O3", "-std=c++17", "-arch=sm_90", str(SOURCE)]
    cubin = subprocess.run(
        [*base, "-cubin", "-Xptxas", "-v", "-o", str(tmp_path / "x")], capture_output=True, text=True
    )
    assert cubin.returncode == 0 and "warning" not in cubin.stderr, cubin.stderr
    assert cubin.stderr.count(" 0 bytes spill stores, 0 bytes spill loads") == 2 * len(PAIRS)
    subprocess.run([*base, "-ptx", "-o", str(tmp_path / "x.ptx")], check=True)
    narrow = re.search(r"\.entry \w*copy_narrow.*?^}", (tmp_path / "x.ptx").read_text(), re.S | re.M)
    assert narrow is not None and len(re.findall(r"ld\.global\S*8\s", narrow.group())) == 64
