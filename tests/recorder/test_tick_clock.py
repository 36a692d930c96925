# SPDX-License-Identifier: Apache-2.0
"""Times of calls come from the processor's counter: they must be the wall clock's all the same."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]

# Of a call, when the wall clock said it began and ended; and how far off a recorded time may be. The rest is
# what the machine does between two lines, so only the order is asked for.
TOLERANCE_NS = 200_000
NOTED = """
noted = {}
def call(seconds=0.0):
    before = time.time_ns()
    correlation = fake.enter(2, 131)
    entered = time.time_ns()
    time.sleep(seconds)
    leaving = time.time_ns()
    fake.exit(2, 131, correlation, 0)
    noted[correlation] = before, entered, leaving, time.time_ns()
def save():
    import json
    open("noted.json", "w").write(json.dumps(noted))
"""
TIMES = """
    SELECT correlationId, start + utcEpochNs, end + utcEpochNs
    FROM CUPTI_ACTIVITY_KIND_RUNTIME, TARGET_INFO_SESSION_START_TIME"""


def check(query: Any, folder: Path, calls: int) -> None:
    import json

    noted = {int(name): times for name, times in json.loads((folder / "noted.json").read_text()).items()}
    rows = query(TIMES)
    assert len(rows) == len(noted) == calls
    for correlation, start, end in rows:
        before, entered, leaving, after = noted[correlation]
        assert before - TOLERANCE_NS <= start <= entered + TOLERANCE_NS, (correlation, start - before)
        assert leaving - TOLERANCE_NS <= end <= after + TOLERANCE_NS, (correlation, end - leaving)


def test_short_and_long_calls_have_the_wall_clocks_times(run: Any, query: Any, tmp_path: Path) -> None:
    run(
        NOTED
        + """
import threading
with profiling_lab.record(OUT) as recorder:
    long = threading.Thread(target=call, args=(0.7,)); long.start()
    for _ in range(300):
        call(); time.sleep(0.002)
    call(0.3)
    long.join()
    call()
save()
print(recorder.summary.meta["call_clock"])
"""
    )
    check(query, tmp_path, 303)


def test_calls_after_the_wall_clock_was_set_have_its_new_time(
    run: Any, query: Any, preload: Any, tmp_path: Path
) -> None:
    clock = """
#include <dlfcn.h>
#include <time.h>
static volatile long step = 0;
extern "C" void set_the_clock(long seconds) { step = seconds; }
extern "C" int clock_gettime(clockid_t id, timespec* t) {
  static auto* real = (int (*)(clockid_t, timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int status = real(id, t);
  if (id == CLOCK_REALTIME) t->tv_sec += step;
  return status;
}
"""
    run(
        NOTED
        + """
import ctypes
with profiling_lab.record(OUT):
    call(); time.sleep(0.3)
    for seconds in (2, -3):  # a step is seen at the next drain
        ctypes.CDLL(os.environ["LD_PRELOAD"]).set_the_clock(seconds); time.sleep(0.2)
        call(); time.sleep(0.2)
save()
""",
        env=preload(clock),
    )
    check(query, tmp_path, 3)


@pytest.mark.parametrize(("source", "clock"), [("tsc", "processor counter"), ("hpet", "system clock: ")])
def test_a_counter_that_the_kernel_does_not_trust_is_not_used(
    run: Any, query: Any, preload: Any, tmp_path: Path, source: str, clock: str
) -> None:
    if source == "tsc" and not {"constant_tsc", "nonstop_tsc"} <= set(
        Path("/proc/cpuinfo").read_text().split()
    ):
        pytest.skip("this processor has no invariant time stamp counter")
    (tmp_path / "source").write_text(source + "\n")
    kernel = f"""
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
extern "C" FILE* fopen(const char* path, const char* mode) {{
  static auto* real = (FILE * (*)(const char*, const char*))dlsym(RTLD_NEXT, "fopen");
  return real(std::strstr(path, "current_clocksource") ? "{tmp_path}/source" : path, mode);
}}
"""
    done = run(
        NOTED
        + """
with profiling_lab.record(OUT) as recorder:
    for _ in range(20):
        call(0.003)
save()
print(recorder.summary.meta["call_clock"])
""",
        env=preload(kernel),
    )
    assert done.stdout.startswith(clock), done.stdout
    check(query, tmp_path, 20)


def test_another_rate_of_the_counter_is_learned(tmp_path: Path) -> None:
    """As after a virtual machine has moved to another host; the clock is the test's own."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    clock = REPO / "csrc" / "recorder" / "system" / "tick_clock.cpp"
    sources = [Path(__file__).with_name("tick_rates.cpp"), clock]
    program = tmp_path / "tick_rates"
    flags = ["-std=c++20", "-O1", f"-I{REPO / 'csrc'}", "-o", str(program)]
    subprocess.run([compiler, *map(str, sources), *flags], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    off = {name: int(ns) for name, ns in (line.split() for line in done.stdout.splitlines())}
    assert off.keys() == {"steady", "slower", "moved", "little", "set", "back"}
    assert max(off.values()) < 1_000_000 and off["steady"] < 2000, off
    assert all(off[name] < 2000 for name in ("slower", "moved", "set", "back")), off
