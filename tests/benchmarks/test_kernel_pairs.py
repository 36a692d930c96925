# SPDX-License-Identifier: Apache-2.0
"""benchmarks/counters/kernel_pairs.cu: both kernels of a pair compute the same, and show their fault."""

from __future__ import annotations

import csv
import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import REPO

from profiling_lab.analysis.ncu import report as ncu_report
from profiling_lab.analysis.ncu.consistency import LOADS
from profiling_lab.analysis.ncu.figures import DURATION, figures
from profiling_lab.analysis.ncu.report import Report
from profiling_lab.exercises import cuda_build

SOURCE = REPO / "benchmarks" / "counters" / "kernel_pairs.cu"
RECORDED = SOURCE.with_name("kernel_pairs_h200.csv")
STALLS = {
    "chase": "long_scoreboard",
    "copy_narrow": "lg_throttle",
    "table_conflicts": "mio_throttle",
    "chain": "wait",
    "in_float64": "math_pipe_throttle",
    "sum_at_barriers": "barrier",
}
"""what the faulty kernel of a pair was written to wait for"""
INSTRUCTIONS = "smsp__inst_executed.sum"
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
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


def stall_errors(report: Report) -> list[str]:
    """The kernels that do not wait most for what they were written to wait for."""
    longest = {fault: figures([report.last(fault)]).stalls[0][0] for fault in STALLS}
    return [f"{fault}: {longest[fault]}" for fault, stall in STALLS.items() if longest[fault] != stall]


def slow_repairs(report: Report) -> list[str]:
    return [new for old, new in PAIRS if report.last(new).duration_ns >= report.last(old).duration_ns]


def test_on_the_gpu_each_fault_leads_its_stalls_and_each_repair_is_faster() -> None:
    report = ncu_report.read(RECORDED)
    assert [each.function for each in report.launches] == [name for pair in PAIRS for name in pair]
    assert stall_errors(report) == [] and slow_repairs(report) == []


def test_on_the_gpu_the_last_two_pairs_differ_in_instructions_and_loads() -> None:
    report = ncu_report.read(RECORDED)
    exact, fast = (report.last(name).value(INSTRUCTIONS) for name in ("exact_math", "fast_math"))
    assert exact > 2 * fast
    untiled, tiled = (report.last(f"multiply_{name}") for name in ("untiled", "tiled"))
    assert untiled.value(LOADS[0]) > 4 * tiled.value(LOADS[0])
    assert untiled.value(LOADS[0]) <= 4 * untiled.value(LOADS[1]), (
        "coalesced: four sectors for a warp of floats"
    )


@pytest.mark.parametrize("fault", STALLS)
def test_a_table_in_which_another_stall_leads_is_noticed(fault: str, tmp_path: Path) -> None:
    other = "barrier" if STALLS[fault] != "barrier" else "wait"
    report = changed(fault, STALL.format(other), "1e9", tmp_path)
    assert stall_errors(report) == [f"{fault}: {other}"]


def test_a_table_in_which_a_repair_is_slower_is_noticed(tmp_path: Path) -> None:
    assert slow_repairs(changed("chain_four", DURATION, "1e9", tmp_path)) == ["chain_four"]


def changed(kernel: str, metric: str, value: str, folder: Path) -> Report:
    """The recorded table with another value of one kernel."""
    rows = list(csv.reader(RECORDED.read_text().splitlines()))
    column, name = rows[0].index(metric), rows[0].index("Kernel Name")
    [row] = [row for row in rows if row[name].startswith(f"{kernel}(")]
    row[column] = value
    path = folder / RECORDED.name
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    return ncu_report.read(path)
