# SPDX-License-Identifier: Apache-2.0
"""`record --energy` under a driver whose GPU has known power: the way from its counter to joules by line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from recorder.runner import Runner

from profiling_lab.analysis.energy.energy import IDLE, energy
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import OperationKind

Query = Callable[..., list[tuple[Any, ...]]]
HERE = Path(__file__).parent

PRELUDE = """
import ctypes
driver = ctypes.CDLL(os.environ["PROFILING_LAB_NVML"])
driver.fake_start.argtypes = (ctypes.c_double, ctypes.c_int64, ctypes.c_int64)
driver.fake_use.argtypes = (ctypes.c_int64, ctypes.c_int64, ctypes.c_double)
driver.fake_go.restype, driver.fake_joules.restype = ctypes.c_int64, ctypes.c_double
driver.fake_joules.argtypes = (ctypes.c_int64,)
MS = 1_000_000
launch = fake.library.fake_launch
def kernel(correlation, name, start, end):
    fake.library.fake_kernel(correlation, start, end, name.encode(), 7, 10, 256)
"""
# Phases of 61 and 37 ms, whose steps are longer than the counter's period, so that it resolves them.
PROGRAM = """
def run(seconds):
    now, plan = 0, []
    while now < seconds * 1000:
        plan += [("hot", now, now + 61, 600.0), ("cold", now + 61, now + 98, 250.0)]
        now += 105
    for _, start, end, watts in plan:
        driver.fake_use(start * MS, end * MS, watts)
    zero = driver.fake_go()
    for name, start, end, _ in plan:
        if name == "hot":
            kernel(launch(), name, zero + start * MS, zero + end * MS)  # line: hot
        else:
            kernel(launch(), name, zero + start * MS, zero + end * MS)  # line: cold
    time.sleep(max((zero + now * MS - time.time_ns()) / 1e9, 0) + 0.2)
    print(zero)
"""
START = "driver.fake_start(100.0, 20 * MS, 3 * MS)\n"
SLOWER = "driver.fake_start(100.0, 50 * MS, 3 * MS)\n"


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    library = tmp_path_factory.mktemp("nvml") / "libcuda.so.1"
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([compiler, *flags, str(HERE / "fake_nvml.cpp"), "-o", str(library)], check=True)
    return {"PROFILING_LAB_NVML": str(library)}


def test_joules_by_line_are_those_that_the_gpu_used(
    run: Runner, query: Query, tmp_path: Path, fake_nvml: dict[str, str]
) -> None:
    run(
        PRELUDE + PROGRAM + SLOWER + "with profiling_lab.record(OUT, energy=True):\n    run(6)\n",
        env=fake_nvml,
    )
    source = (tmp_path / "script.py").read_text().splitlines()
    hot, cold = (source.index(next(t for t in source if f"line: {n}" in t)) + 1 for n in ("hot", "cold"))
    ((state,),) = query("SELECT value FROM PYREC_META WHERE name = 'energy_state'")
    assert state == "on" and not query("SELECT name FROM PYREC_META WHERE name LIKE 'energy.%'")
    with Trace.open(tmp_path / "out.sqlite") as trace:
        result = energy(trace, own=("script.py",))
        ((samples),) = trace.source.energy()
        assert set(trace.operations.kind) == {OperationKind.KERNEL}
    (device,) = result.devices
    assert device.power_limit_w and device.power_limit_w.mean == 700
    assert device.sm_clock_mhz and device.sm_clock_mhz.low == device.sm_clock_mhz.high == 1980
    assert device.limits == (("power cap", 1.0),), "bit 0 says only that the GPU is idle"
    assert set(samples.power_mw.tolist()) == {321_000}
    assert set(samples.instant_power_mw.tolist()) == {-1}, "this driver has no such reading: unknown, not 0"
    # 58 steps of 61 ms at 600 W, 37 at 250, 7 idle at 100: the last idle time follows the last operation
    used = {hot: 36.6, cold: 9.25, 0: 0.7}
    seconds = device.ns * 1e-9
    assert device.joules == pytest.approx(sum(used.values()) / 0.105 * seconds, rel=0.01)
    assert 3 < seconds < 6.2
    rows = {row.line: row for row in result.rows}
    assert rows[0].key == IDLE
    for line in (hot, cold):
        row = rows[line]
        assert row.gpu_ns == pytest.approx({hot: 61, cold: 37}[line] / 105 * device.ns, rel=0.02)
        if row.joules is not None and row.error_j is not None:
            assert abs(row.joules - used[line] / 0.105 * seconds) <= row.error_j + 0.01 * row.joules
        else:
            assert row.needs_s is None or row.needs_s > 0


def test_the_counter_of_the_gpu_that_cuda_means(run: Runner, query: Query, fake_nvml: dict[str, str]) -> None:
    """CUDA's GPU 0 is the second one of the machine; its counter begins at 50 J, the other's at a million."""
    run(
        PRELUDE
        + START
        + """
with profiling_lab.record(OUT, energy=True):
    fake.kernel("k")
    while driver.fake_asked() < 60: time.sleep(0.01)
""",
        env=fake_nvml,
    )
    rows = query("SELECT start, energyMj, deviceId, spread FROM PYREC_ENERGY ORDER BY start")
    assert rows and {device for _, _, device, _ in rows} == {0}
    assert all(50_000 <= energy < 900_000 for _, energy, _, _ in rows)
    energies = [energy for _, energy, _, _ in rows]
    assert energies == sorted(set(energies)), "a row per change, no repeats"
    # 100 W in periods of 20 ms: each change is 2 J per period that passed
    for (before, one, _, spread), (after, two, _, more) in pairwise(rows):
        periods = (two - one) / 2000
        assert periods == pytest.approx(round(periods), abs=0.01)
        assert abs((after - before) - round(periods) * 20_000_000) <= spread + more + 2_000_000


@pytest.mark.parametrize(
    ("setup", "why"),
    [
        ("", "the program made no CUDA context, so there is no GPU to read"),
        (
            START + "driver.fake_no_counter()\n",
            "GPU 0: nvmlDeviceGetTotalEnergyConsumption: Not Supported",
        ),
        (
            START + "os.environ['PROFILING_LAB_NVML'] = '/nowhere/libnvidia-ml.so.1'\n",
            "GPU 0: no NVIDIA driver (/nowhere/libnvidia-ml.so.1 was not found)",
        ),
    ],
)
def test_without_a_counter_the_recording_goes_on(
    run: Runner, query: Query, fake_nvml: dict[str, str], setup: str, why: str
) -> None:
    done = run(
        PRELUDE
        + setup
        + """
with profiling_lab.record(OUT, energy=True) as recorder:
    fake.kernel('k')
    time.sleep(0.2)
print(recorder.summary.reasons['energy'])
""",
        env=fake_nvml,
    )
    assert done.stdout.strip() == why
    assert query("SELECT value FROM PYREC_META WHERE name = 'energy_state'") == [(why,)]
    assert query("SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(1,)]
    assert not query("SELECT name FROM sqlite_master WHERE name = 'PYREC_ENERGY'")


def test_a_killed_program_keeps_its_samples(run: Runner, tmp_path: Path, fake_nvml: dict[str, str]) -> None:
    from profiling_lab.recording.convert import convert

    run(
        PRELUDE
        + START
        + """
from profiling_lab.recording.energy import sampler
sampler.FLUSH_ROWS = 5
recorder = profiling_lab.recording.Recorder(OUT, energy=True)
recorder.start()
fake.kernel("k")
while recorder._energy._pieces < 3: time.sleep(0.01)
time.sleep(0.5)
os.kill(os.getpid(), 9)
""",
        ok=False,
        env=fake_nvml,
    )
    done = convert(tmp_path / "out.sqlite.spool", tmp_path / "recovered.sqlite")
    assert done.rows["PYREC_ENERGY"] >= 15


def test_its_thread_takes_no_signals_and_a_fork_has_none(run: Runner, fake_nvml: dict[str, str]) -> None:
    done = run(
        PRELUDE
        + START
        + """
import signal, threading
with profiling_lab.record(OUT, energy=True):
    fake.kernel("k")
    while driver.fake_asked() < 3: time.sleep(0.01)
    (thread,) = [t for t in threading.enumerate() if t.name == "profiling-lab energy"]
    status = open(f"/proc/self/task/{thread.native_id}/status").read()
    blocked = int(next(l for l in status.splitlines() if l.startswith("SigBlk")).split()[1], 16)
    assert all(blocked >> (s - 1) & 1 for s in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)), hex(blocked)
    child = os.fork()
    if child == 0:
        os._exit(3 if threading.active_count() > 1 else 0)
    assert os.waitpid(child, 0)[1] == 0
assert not [t for t in threading.enumerate() if t.name == "profiling-lab energy"]
print("done")
""",
        env=fake_nvml,
    )
    assert done.stdout == "done\n"


def test_a_thread_that_nvml_does_not_answer_is_left_behind(run: Runner, fake_nvml: dict[str, str]) -> None:
    done = run(
        PRELUDE
        + START
        + """
from profiling_lab.recording.energy import sampler
sampler._JOIN_S = 0.05
sampler._Gpu.poll = lambda self, now_s: time.sleep(60)
with profiling_lab.record(OUT, energy=True) as recorder:
    fake.kernel("k")
    while not recorder._energy._gpus: time.sleep(0.01)
print(recorder.summary.reasons["energy"], flush=True)
os._exit(0)
""",
        env=fake_nvml,
    )
    assert done.stdout == "NVML did not answer at the end of the recording\n"


def test_lists_of_processes_are_as_long_as_nvml_says(fake_nvml: dict[str, str]) -> None:
    program = """
from profiling_lab.recording.energy.nvml import NvmlGpu
gpu = NvmlGpu(lambda nvml: None)
print([each.pid for each in gpu.ask(lambda nvml, gpu: nvml.nvmlDeviceGetComputeRunningProcesses(gpu))])
for since in (0, 500):
    samples = gpu.ask(lambda nvml, gpu: nvml.nvmlDeviceGetProcessUtilization(gpu, since))
    print([(each.pid, each.timestamp, each.sm_percent, each.decoder_percent) for each in samples])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **fake_nvml}, capture_output=True, text=True
    )
    shown = [str([*range(1000, 1020)]), "[(1003, 100, 40, 3), (1004, 500, 60, 6)]", "[]"]
    assert done.stdout.splitlines() == shown, done.stderr
