# SPDX-License-Identifier: Apache-2.0
"""`record --counters` with a CUPTI whose counters rise evenly: from its samples to the table."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorder.runner import Runner
from recorder.test_energy import fake_nvml as fake_nvml

from profiling_lab.trace import Trace

Query = Callable[..., list[tuple[Any, ...]]]
PRELUDE = """
import ctypes
driver = ctypes.CDLL(os.environ["PROFILING_LAB_NVML"])
driver.fake_start.argtypes = (ctypes.c_double, ctypes.c_int64, ctypes.c_int64)
driver.fake_start(100.0, 20_000_000, 3_000_000)
"""
PROGRAM = "with profiling_lab.record(OUT, counters=True) as r:\n    time.sleep(0.8)\n"


def test_samples_are_those_of_the_gpu(
    run: Runner, query: Query, tmp_path: Path, fake_nvml: dict[str, str]
) -> None:
    out = run(f"{PRELUDE}{PROGRAM}print(r.reasons)\n", env=fake_nvml)
    assert "counters" not in out.stdout, "nothing is missing, and nothing is said to be"
    assert query("SELECT value FROM PYREC_META WHERE name = 'counters_state'") == [("on",)]
    assert not query("SELECT name FROM PYREC_META WHERE name LIKE 'counters.%'")
    with Trace.open(tmp_path / "out.sqlite") as trace:
        (samples,) = trace.source.counters()
    assert len(samples) > 1000, "0.8 s, less what it took to begin, at one each 100 us"
    assert (samples.end_ns - samples.start_ns == 100_000).all(), "the first one, of a second, is left out"
    assert (samples.start_ns[1:] == samples.end_ns[:-1]).all(), "none is lost or there twice"
    assert {name: set(values.tolist()) for name, values in samples.values.items()} == {
        "dram_read": {200_000_000},
        "dram_written": {50_000_000},
        "sm_active": {750_000},
        "tensor": {400_000},
    }, "PCIe fits into no common pass, and this GPU has no other"


@pytest.mark.parametrize(
    ("function", "result", "words"),
    [
        ("PmSamplingEnable", 35, "ERR_NVGPUCTRPERM"),
        ("PmSamplingGetCounterAvailability", 33, "virtual GPU"),
        ("PmSamplingStart", 7, "CUPTI cannot sample hardware counters of this GPU: PmSamplingStart"),
    ],
)
def test_a_gpu_that_refuses_is_named_and_the_program_goes_on(
    function: str, result: int, words: str, run: Runner, query: Query, fake_nvml: dict[str, str]
) -> None:
    refuse = f"fake.library.fake_fail({function!r}.encode(), {result})\n"
    out = run(PRELUDE + refuse + PROGRAM + "print('went on')\n", env=fake_nvml)
    assert "went on" in out.stdout
    ((state,),) = query("SELECT value FROM PYREC_META WHERE name = 'counters_state'")
    assert words in state and state.startswith("GPU 0: ")


REAL = """
import os, sys, time, torch
def work(x):
    end, number = time.monotonic() + 4, 0  # sampling begins some tenths of a second after the GPU's first use
    while time.monotonic() < end:
        for _ in range(100):
            x.clone()
        torch.cuda.synchronize()
        number += 100
    print(number, "copies", flush=True)
x = torch.zeros(1 << 28, device="cuda")
if "fork" in sys.argv:
    torch.cuda.synchronize()
    time.sleep(0.5)
    if os.fork() == 0:
        print("child", flush=True)
        os._exit(0)
    os.wait()
work(x)
print("went on")
"""
COPIES = 1 + REAL.splitlines().index("            x.clone()")


@pytest.mark.gpu
@pytest.mark.parametrize("argument", ["", "fork"])
def test_a_real_gpu_counts_the_bytes_of_copies(argument: str, tmp_path: Path) -> None:
    from profiling_lab.analysis.counters.by_line import counters_by_line

    (tmp_path / "copies.py").write_text(REAL)
    command = ["record", "--counters", "-o", "out.sqlite", "copies.py", argument]
    done = subprocess.run(
        [sys.executable, "-m", "profiling_lab", *command],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and "went on" in done.stdout, done.stderr
    assert "counters:" not in done.stderr or "counters: GPU" in done.stderr
    with Trace.open(tmp_path / "out.sqlite") as trace:
        state = trace.recorder_facts["counters_state"]
        if "ERR_NVGPUCTRPERM" in state or "virtual" in state:
            pytest.skip(state)
        assert state == "on"
        (samples,) = trace.source.counters()
        row = next(row for row in counters_by_line(trace).rows if row.line == COPIES)
    moved = int(done.stdout.split(" copies")[0].split()[-1]) * (1 << 30)
    assert row.counters["dram_read"].amount <= 1.03 * moved
    assert row.counters["dram_read"].amount == pytest.approx(row.counters["dram_written"].amount, rel=0.02)
    rate = row.counters["dram_read"].amount / (row.gpu_ns * 1e-9)
    durations = trace.operations.end_ns - trace.operations.start_ns
    # all of the copies, of which not all were sampled, and a GPU's clock changes meanwhile
    assert rate == pytest.approx((1 << 30) / (np.mean(durations) * 1e-9), rel=0.1)
    assert {"sm_active", "issued", "tensor"} <= set(samples.values)
