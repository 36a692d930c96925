# SPDX-License-Identifier: Apache-2.0
"""Starting, stopping, being refused, and every way a process can end."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from package_root import PACKAGE_ROOT

REFUSED = """
try:
    profiling_lab.record(OUT).__enter__()
except profiling_lab.errors.LabError as error:
    print(error)
else:
    raise SystemExit("was not refused")
assert not os.path.exists(OUT + ".spool")
"""


def refusal(run: Any, before: str = "", **options: Any) -> str:
    text = run(f"{before}\n{REFUSED}", **options).stdout.strip()
    assert "\n" not in text
    return str(text)


def test_another_subscriber_is_named_and_cupti_is_left_alone(run: Any) -> None:
    text = refusal(run, "fake.other_subscriber(b'CUPTI for Proton'); calls = fake.api_calls()")
    assert "CUPTI is held by 'CUPTI for Proton'" in text
    run("""
fake.other_subscriber(b"someone")
try: profiling_lab.record(OUT).__enter__()
except profiling_lab.errors.LabError: pass
assert fake.api_calls() == 1, fake.api_calls()  # the subscription itself
fake.other_subscriber(b"")
with profiling_lab.record(OUT): fake.kernel("a")  # and it works once the other one is gone
""")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (15, "the NVIDIA driver is older than"),
        (999, "no CUDA driver was found"),
        (33, "CUPTI_ERROR_FAKE (33)"),
    ],
)
def test_a_cupti_that_cannot_start_leaves_the_rest_recording(
    run: Any, query: Any, code: int, reason: str
) -> None:
    run(f"""
fake.fail(b"Subscribe", {code})
with profiling_lab.record(OUT) as recorder: fake.kernel("a")
assert {reason!r} in recorder.summary.reasons["gpu"], recorder.summary
assert recorder.summary.kernels == 0
""")
    meta = dict(query("SELECT name, value FROM PYREC_META"))
    assert meta["gpu"] == "off" and reason in meta["gpu_reason"]


def test_an_activity_kind_that_fails_is_said_and_undone(run: Any, query: Any) -> None:
    run("""
fake.fail(b"ActivityEnable", 33)
with profiling_lab.record(OUT) as recorder: pass
assert "CONCURRENT_KERNEL" in recorder.summary.reasons["gpu"]
assert not fake.subscribed() and fake.callbacks_enabled() == 0
""")


@pytest.mark.parametrize("library", ["/nonexistent/libcupti.so", __file__, "libm.so.6"])
def test_a_library_that_is_no_cupti(run: Any, library: str) -> None:
    run(
        """
os.environ["PROFILING_LAB_CUPTI"] = os.environ["WRONG"]
with profiling_lab.record(OUT) as recorder: pass
assert "PROFILING_LAB_CUPTI cannot be used" in recorder.summary.reasons["gpu"], recorder.summary
""",
        env={"WRONG": library},
    )


def test_without_any_libcupti(run: Any) -> None:
    run("""
from profiling_lab import _recorder
state = _recorder.start(spool_path=OUT + ".spool", cupti_candidates=["/nonexistent/libcupti.so.13"])
assert not state["gpu"] and "libcupti was not found" in state["gpu_reason"], state
_recorder.stop({})
""")


@pytest.mark.parametrize(
    ("variable", "who"),
    [
        ("NSYS_PROFILING_SESSION_ID", "Nsight Systems"),
        ("NV_NSIGHT_INJECTION_TRANSPORT_TYPE", "Nsight Compute"),
    ],
)
def test_refused_under_nvidias_profilers(run: Any, variable: str, who: str) -> None:
    assert who in refusal(run, env={variable: "1"})


@pytest.mark.parametrize(
    ("library", "who"),
    [
        ("libToolsInjection64.so", "Nsight Systems"),
        ("libToolsInjectionProxy64.so", "Nsight Systems"),
        ("libsanitizer-collection.so", "compute-sanitizer"),
    ],
)
def test_refused_where_their_library_is_loaded(
    run: Any, preload: Any, tmp_path: Path, library: str, who: str
) -> None:
    shutil.copy(preload("int nothing;")["LD_PRELOAD"], tmp_path / library)
    assert who in refusal(run, env={"LD_PRELOAD": str(tmp_path / library)})


def test_refused_inside_torch_profiler(run_warm: Any) -> None:
    run_warm("""
import torch
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
    try: profiling_lab.record(OUT).__enter__()
    except profiling_lab.errors.LabError as error: assert "torch.profiler is recording" in str(error)
    else: raise SystemExit("was not refused")
with profiling_lab.record(OUT): pass
with torch.autograd.profiler.emit_nvtx(enabled=False), profiling_lab.record(OUT, overwrite=True): pass
""")


def test_refused_inside_a_recording_which_goes_on(run: Any, query: Any) -> None:
    run("""
with profiling_lab.record(OUT):
    fake.kernel("a")
    try: profiling_lab.record(OUT + "2").__enter__()
    except profiling_lab.errors.LabError as error: assert "already running" in str(error)
    else: raise SystemExit("was not refused")
    fake.kernel("b")
""")
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(2,)]


@pytest.mark.parametrize(
    ("path", "sentence"),
    [("'.'", "is a folder"), ("'nowhere/a.sqlite'", "does not exist"), ("__file__", "exists already")],
)
def test_unusable_paths(run: Any, path: str, sentence: str) -> None:
    run(f"""
try: profiling_lab.record({path}).__enter__()
except profiling_lab.errors.UsageError as error: assert {sentence!r} in str(error)
else: raise SystemExit("was not refused")
""")


def test_overwrite_replaces_the_file(run: Any, query: Any) -> None:
    run("""
open(OUT, "w").write("something else")
with profiling_lab.record(OUT, overwrite=True): fake.kernel("a")
""")
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(1,)]


def test_start_and_stop_a_hundred_times(run: Any, query: Any) -> None:
    run("""
def rss(): return int(open("/proc/self/statm").read().split()[1]) * 4096
for i in range(100):
    with profiling_lab.record(OUT, overwrite=True) as recorder:
        for _ in range(i): fake.kernel("a")
    assert recorder.summary.kernels == recorder.summary.launches == i
    assert not fake.subscribed() and fake.callbacks_enabled() == 0 and not fake.kind_enabled(10)
    if i == 20: before = rss()
assert rss() - before < 32 << 20, rss() - before
""")
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(99,)]


def test_stop_from_another_thread_and_twice(run: Any) -> None:
    run("""
import threading
recorder = profiling_lab.recording.Recorder(OUT)
try: recorder.stop()
except profiling_lab.errors.LabError as error: assert "is not recording" in str(error)
else: raise SystemExit("stop without start")
recorder.start(); fake.kernel("a")
thread = threading.Thread(target=recorder.stop); thread.start(); thread.join()
assert recorder.summary.kernels == 1
try: recorder.stop()
except profiling_lab.errors.LabError as error: assert "is not recording" in str(error)
else: raise SystemExit("stopped twice")
""")


def test_stop_inside_a_cuda_call_is_refused(run: Any) -> None:
    run("""
recorder = profiling_lab.recording.Recorder(OUT); recorder.start()
correlation = fake.enter(RUNTIME, LAUNCH)
try: recorder.stop()
except profiling_lab.errors.LabError as error: assert "inside a CUDA call" in str(error)
else: raise SystemExit("was not refused")
fake.exit(RUNTIME, LAUNCH, correlation, 0)
assert recorder.stop().launches == 1
""")


@pytest.mark.parametrize("limit", ["most_bytes=100_000", "schedule=Schedule(duration_s=0.1)"])
def test_a_recording_that_ends_while_main_is_in_a_cuda_call_is_written(
    run: Any, query: Any, limit: str
) -> None:
    """The end of that call is not seen any more: that must not keep stop() from working."""
    run(f"""
import threading
from profiling_lab.recording import Schedule
recorder = profiling_lab.recording.Recorder(OUT, {limit}, flush_period_ms=20); recorder.start()
fake.kernel("before")
correlation = fake.enter(RUNTIME, DEVICE_SYNC)
def work():
    while fake.callbacks_enabled(): fake.kernel("beside"); time.sleep(0.0005)
thread = threading.Thread(target=work); thread.start(); thread.join()
fake.exit(RUNTIME, DEVICE_SYNC, correlation, 0)
assert recorder.stop().launches > 1
""")
    names = dict(query(
        "SELECT value, count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName GROUP BY 1"
    ))  # fmt: skip
    assert names["before"] == 1 and names["beside"] >= 1


def diagnostics(query: Any) -> list[str]:
    if query("SELECT count(*) FROM sqlite_master WHERE name = 'DIAGNOSTIC_EVENT'") == [(0,)]:
        return []
    return [text for (text,) in query("SELECT text FROM DIAGNOSTIC_EVENT")]


@pytest.mark.parametrize("why", ["long kernel", "no kernels", "captured"])
def test_late_or_missing_records_are_no_error(run: Any, query: Any, preload: Any, why: str) -> None:
    """However long calls go on without records, here by a clock that jumps: what counts is what CUPTI has
    when it is asked for everything at the end."""
    clock = """
#include <dlfcn.h>
#include <time.h>
static volatile long step = 0;
extern "C" void set_the_clock(long seconds) { step = seconds; }
extern "C" int clock_gettime(clockid_t id, timespec* t) {
  static auto* real = (int (*)(clockid_t, timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int status = real(id, t);
  t->tv_sec += step;
  return status;
}
extern "C" int pthread_cond_clockwait(void* condition, void* mutex, clockid_t id, const timespec* until) {
  static auto* real =
      (int (*)(void*, void*, clockid_t, const timespec*))dlsym(RTLD_NEXT, "pthread_cond_clockwait");
  const timespec real_until{until->tv_sec - step, until->tv_nsec};
  return real(condition, mutex, id, &real_until);
}
extern "C" int clock_nanosleep(clockid_t id, int flags, const timespec* until, timespec* left) {
  static auto* real =
      (int (*)(clockid_t, int, const timespec*, timespec*))dlsym(RTLD_NEXT, "clock_nanosleep");
  const timespec real_until{until->tv_sec - (flags & TIMER_ABSTIME ? step : 0), until->tv_nsec};
  return real(id, flags, &real_until, left);
}
"""
    run(
        f"""
import ctypes
recorder = profiling_lab.recording.Recorder(OUT, flush_period_ms=20); recorder.start()
from profiling_lab import _recorder
fake.kernel("before")
correlation = fake.launch() if {why!r} == "long kernel" else 0
def seen(): return int(_recorder.status()["calls"])
for second in (7, 14):
    ctypes.CDLL(os.environ["LD_PRELOAD"]).set_the_clock(second)
    for _ in range(20):
        if {why!r} == "captured":
            fake.call(313); correlation = fake.call(LAUNCH); fake.call(316)
        else: fake.call(MALLOC)
    while seen() < 20 * second // 7: time.sleep(0.005)
if {why!r} == "long kernel": fake.library.fake_kernel(correlation, 1, time.time_ns(), b"long", 7, 1, 1)
recorder.stop()
""",
        env=preload(clock),
    )
    assert not [text for text in diagnostics(query) if "CUPTI" in text]


def test_records_that_another_client_gets_are_missed_and_reported(run: Any, query: Any) -> None:
    run("""
recorder = profiling_lab.recording.Recorder(OUT, flush_period_ms=20); recorder.start()
fake.kernel("before")
fake.other_buffers()
time.sleep(1.2)
fake.kernel("theirs")
recorder.stop()
""")
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(1,)]
    (text,) = diagnostics(query)
    assert re.match(r"CUPTI, asked for all records, had none of the kernels launched in the last \d+ s", text)
    assert "would explain it" in text


@pytest.mark.parametrize(("version", "works"), [(18, True), (28, True), (130300, True), (140000, False)])
def test_a_cupti_of_an_unknown_major_version_is_refused(run: Any, version: int, works: bool) -> None:
    """A record that is read by the layout of another version would be wrong in silence."""
    program = f"""
fake.version({version})
with profiling_lab.record(OUT, overwrite=True) as recorder: fake.kernel("a")
print(recorder.summary.kernels, recorder.summary.reasons.get("gpu"))
"""
    assert run(program, env={"PROFILING_LAB_ANY_CUPTI": "1"}).stdout == "1 None\n"
    said = run(program, env={"PROFILING_LAB_ANY_CUPTI": ""}).stdout
    if works:
        assert said == "1 None\n"
    else:
        assert said.startswith("0 PROFILING_LAB_CUPTI cannot be used: ") and said.count("\n") == 1
        assert (
            "is CUPTI of CUDA 14, and its records are known up to CUDA 13: PROFILING_LAB_ANY_CUPTI=1" in said
        )


def test_calls_while_stopping_do_not_crash(run: Any) -> None:
    run("""
import threading
go = True
def work():
    while go: fake.launches(50)
threads = [threading.Thread(target=work) for _ in range(3)]
[t.start() for t in threads]
for _ in range(30):
    with profiling_lab.record(OUT, overwrite=True) as recorder: time.sleep(0.01)
    assert recorder.summary.launches > 0
go = False; [t.join() for t in threads]
""")


@pytest.mark.parametrize(
    ("ending", "status"), [("sys.exit(3)", 3), ("raise ValueError('mine')", 1), ("pass", 0)]
)
def test_a_process_that_ends_leaves_its_file(run: Any, query: Any, ending: str, status: int) -> None:
    done = run(
        f"recorder = profiling_lab.recording.Recorder(OUT); recorder.start(); fake.kernel('a')\n{ending}",
        ok=False,
    )
    assert done.returncode == status, done.stderr
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(1,)]
    assert query("SELECT value FROM PYREC_META WHERE name = 'finished'") == [("yes",)]


def test_ctrl_c_ends_the_process_as_without_us(run: Any, query: Any) -> None:
    done = run(
        """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this process was started with
with profiling_lab.record(OUT):
    fake.kernel("a")
    signal.raise_signal(signal.SIGINT)
""",
        ok=False,
    )
    assert done.returncode == -signal.SIGINT and "KeyboardInterrupt" in done.stderr
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(1,)]


@pytest.mark.parametrize(
    "ending", ["os._exit(5)", "os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 15)", "os.abort()"]
)
def test_a_process_that_dies_leaves_a_spool_that_can_be_converted(
    run: Any, tmp_path: Path, ending: str
) -> None:
    from profiling_lab.recording.convert import convert

    run(
        f"""
recorder = profiling_lab.recording.Recorder(OUT, flush_period_ms=50); recorder.start()
for _ in range(10): fake.kernel("a")
time.sleep(0.3)  # longer than a flush
{ending}""",
        ok=False,
    )
    assert not (tmp_path / "out.sqlite").exists()
    converted = convert(tmp_path / "out.sqlite.spool", tmp_path / "saved.sqlite")
    assert converted.rows["CUPTI_ACTIVITY_KIND_KERNEL"] == 10
    assert converted.rows["PYREC_LAUNCH"] == 10 and converted.rows["PYREC_STACK"] > 0
    assert "finished" not in converted.meta


def test_a_forked_child_neither_records_nor_harms(run: Any, query: Any) -> None:
    done = run("""
recorder = profiling_lab.recording.Recorder(OUT); recorder.start(); fake.kernel("a")
pid = os.fork()
if pid == 0:
    fake.kernel("child")
    try: profiling_lab.record("child.sqlite").__enter__()
    except profiling_lab.errors.LabError as error: print("child:", error)
    sys.exit(0)  # runs atexit
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
fake.kernel("b")
recorder.stop()
""")
    assert "forked" in done.stdout
    names = query(
        "SELECT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName ORDER BY correlationId"
    )
    assert names == [("a",), ("b",)]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_workers(run: Any, query: Any, method: str, tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("def item(i): return [i]\n")
    done = run(
        f"""
import torch, data
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 16
    def __getitem__(self, i): return torch.tensor(data.item(i))
if __name__ == "__main__":
    with profiling_lab.record(OUT):
        loader = torch.utils.data.DataLoader(Numbers(), 2, num_workers=2, multiprocessing_context={method!r})
        for batch in loader: fake.kernel("a")
""",
        timeout=600,
    )
    assert done.stdout == ""
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(8,)]


def test_an_exception_inside_a_callback_stays_there(run: Any, preload: Any) -> None:
    """A thread's first call needs memory for its ring; our caller is C, which bad_alloc must not reach."""
    no_memory = """
#include <cerrno>
#include <cstddef>
static volatile bool out_of_memory = false;
extern "C" void set_out_of_memory(int value) { out_of_memory = value; }
extern "C" void* __libc_malloc(size_t);
extern "C" void* malloc(size_t bytes) {
  if (out_of_memory && bytes > (1 << 20)) return errno = ENOMEM, nullptr;
  return __libc_malloc(bytes);
}
"""
    run(
        """
import ctypes, threading
memory = ctypes.CDLL(os.environ["LD_PRELOAD"])
def work():
    fake.launches(10)
with profiling_lab.record(OUT) as recorder:
    fake.launch()
    memory.set_out_of_memory(1)
    thread = threading.Thread(target=work); thread.start(); thread.join()
    memory.set_out_of_memory(0)
    fake.launch()
assert recorder.summary.launches == 2 and recorder.summary.dropped >= 10, recorder.summary
assert recorder.summary.dropped == int(recorder.summary.meta["callback_errors"])
""",
        env=preload(no_memory),
    )


def test_a_wall_clock_that_is_set_is_noticed(run: Any, query: Any, preload: Any) -> None:
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
        """
import ctypes
with profiling_lab.record(OUT, flush_period_ms=50):
    fake.kernel("a"); time.sleep(0.2)
    ctypes.CDLL(os.environ["LD_PRELOAD"]).set_the_clock(2)
    fake.kernel("b"); time.sleep(0.2)
""",
        env=preload(clock),
    )
    texts = [text for (text,) in query("SELECT text FROM DIAGNOSTIC_EVENT")]
    assert len(texts) == 1 and re.match(r"the wall clock was set by (19|20)\d\d ms", texts[0]), texts
    kernels = "CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName"
    assert query(f"SELECT value FROM {kernels} ORDER BY start") == [("a",), ("b",)]


def test_importing_the_package_touches_neither_torch_nor_cupti() -> None:
    code = (
        "import sys, profiling_lab.recording, profiling_lab._recorder; "
        "assert 'torch' not in sys.modules and 'libcupti' not in open('/proc/self/maps').read()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE_ROOT)
