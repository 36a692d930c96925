# SPDX-License-Identifier: Apache-2.0
"""Which windows of a run are recorded: the plan as arithmetic, then carried out under the fake CUPTI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm_torch
from package_root import PACKAGE_ROOT

from profiling_lab.errors import UsageError
from profiling_lab.recording import Schedule
from profiling_lab.recording.schedule import RecorderState

LETTERS = {RecorderState.OFF: ".", RecorderState.WARM_UP: "w", RecorderState.RECORD: "R"}


def plan(schedule: Schedule, steps: int = 12) -> str:
    return "".join(LETTERS[schedule.phase(step)] for step in range(steps))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(), "RRRRRRRRRRRR"),
        (Schedule(wait=2, warmup=1, active=3, repeat=1), "..wRRR......"),
        (Schedule(wait=1, warmup=1, active=2), ".wRRwRRwRRwR"),
        (Schedule(active=1, every=4), "R...R...R..."),
        (Schedule(warmup=1, active=2, every=5, repeat=2), "wRR..wRR...."),
        (Schedule(wait=3), "...RRRRRRRRR"),
        (Schedule.of_steps("10:12"), ".........wRR"),
        (Schedule.of_steps("0:2"), "RR.........."),
        (Schedule.of_steps("1:2"), "wR.........."),
        (Schedule.of_steps(":3"), "RRR........."),
        (Schedule.of_steps("9:"), "........wRRR"),
        (Schedule.of_steps("4:6", warmup=0), "....RR......"),
    ],
    ids=str,
)
def test_phases(schedule: Schedule, expected: str) -> None:
    assert plan(schedule) == expected


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        (lambda: Schedule.of_steps("5"), "A:B"),
        (lambda: Schedule.of_steps("7:7"), "A < B"),
        (lambda: Schedule.of_steps("-3:7"), "A < B"),
        (lambda: Schedule.of_steps("a:b"), "'a:b'"),
        (lambda: Schedule(active=0), "active must be at least 1, not 0"),
        (lambda: Schedule(wait=-1), "wait must be 0 or more, not -1"),
        (lambda: Schedule(every=5), "the number of active steps"),
        (lambda: Schedule(active=3, warmup=2, every=4), "too short"),
        (lambda: Schedule(active=3, delay_s=1), "cannot be combined with steps"),
        (lambda: Schedule(duration_s=0), "more than 0 seconds"),
        (lambda: Schedule(delay_s=float("nan")), "a finite time, not nan s"),
        (lambda: Schedule(duration_s=float("inf")), "a finite time, not inf s"),
        (lambda: Schedule(signal="USR1", wait=3), "signal cannot be combined with steps"),
        (lambda: Schedule(active=1, step_by="nvtx:"), "nvtx:NAME"),
        (lambda: Schedule(active=1, step_by="moon"), "not 'moon'"),
    ],
)
def test_plans_that_make_no_sense_are_one_sentence(wrong: Any, part: str) -> None:
    with pytest.raises(UsageError) as error:
        wrong()
    assert part in str(error.value) and "\n" not in str(error.value)


TRAINING = """
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
def train(steps):
    for step in range(steps):
        fake.kernel(f"step{step}")
        optimizer.step()
        other.step()
"""


def names(query: Any) -> list[str]:
    rows = query(
        "SELECT s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.shortName"
        " ORDER BY k.start"
    )
    return [name for (name,) in rows]


def test_steps_are_those_of_the_first_optimizer_and_warm_up_is_not_kept(run_warm: Any, query: Any) -> None:
    run_warm(f"""
{TRAINING}
with profiling_lab.record(OUT, schedule=profiling_lab.Schedule(warmup=1, active=2, every=5, wait=1)) as r:
    train(10)
    assert not fake.callbacks_enabled() and not fake.kind_enabled(10), "a pause must cost nothing"
    assert not fake.kind_enabled(51), "neither whole graphs"
assert r.summary.kernels == 6, r.summary  # what was captured, warm-up included
""")
    assert names(query) == ["step2", "step3", "step7", "step8"]
    windows = query("SELECT firstStep, start < end FROM PYREC_WINDOW ORDER BY start")
    assert windows == [(2, 1), (7, 1)]
    meta = dict(query("SELECT name, value FROM PYREC_META"))
    assert meta["schedule"] == "steps 2:4 and again every 5 steps" and meta["steps_counted"] == "10"
    calls = query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    assert calls == [(4,)], "the launches of the warm-up have no rows either"


def test_torch_imported_after_the_start_is_followed_too(run: Any, query: Any) -> None:
    run(f"""
with profiling_lab.record(OUT, schedule=profiling_lab.Schedule.of_steps("3:5")):
{"".join(f"    {line}" + chr(10) for line in TRAINING.strip().splitlines())}
    train(8)
""")
    assert names(query) == ["step3", "step4"]


def test_the_programs_own_word_counts_instead_of_the_optimizer(run_warm: Any, query: Any) -> None:
    run_warm(f"""
{TRAINING}
with profiling_lab.record(OUT, schedule=profiling_lab.Schedule.of_steps("2:4")):
    for step in range(6):
        fake.kernel(f"step{{step}}")
        for _ in range(1 if step == 0 else 3): optimizer.step()
        profiling_lab.step()
profiling_lab.step()  # nothing is recorded: does nothing
""")
    assert names(query) == ["step2", "step3"]


def test_kernels_that_run_on_after_their_window_belong_to_it(run: Any, query: Any) -> None:
    run("""
from profiling_lab.recording import Schedule
with profiling_lab.record(OUT, schedule=Schedule.of_steps("1:2", step_by="calls")) as recorder:
    def finish(): fake.library.fake_kernel(last, time.time_ns(), time.time_ns() + 9, b"late", 7, 1, 1)
    recorder._schedule_runner._wait_for_gpu = finish
    last = fake.launch()
    profiling_lab.step()
    last = fake.launch()
    profiling_lab.step()
    last = fake.launch()
""")
    assert names(query) == ["late"]


def test_ranges_end_steps_and_only_those_of_a_window_are_kept(run: Any, query: Any) -> None:
    pytest.importorskip("nvtx", reason="the nvtx package is not installed")
    run("""
from profiling_lab.recording import Schedule
with profiling_lab.record(OUT, schedule=Schedule.of_steps("2:4", step_by="nvtx: my step ")):
    import nvtx
    for step in range(6):
        with nvtx.annotate("my step"), nvtx.annotate(f"inner{step}"):
            fake.kernel(f"step{step}")
""")
    assert names(query) == ["step2", "step3"]
    inner = query(
        "SELECT s.value FROM NVTX_EVENTS n JOIN StringIds s ON s.id = n.textId WHERE s.value LIKE 'inner%'"
    )
    assert {name for (name,) in inner} == {"inner2", "inner3"}


def test_pause_and_resume_by_hand(run: Any, query: Any) -> None:
    run("""
with profiling_lab.record(OUT) as recorder:
    fake.kernel("a")
    recorder.pause()
    recorder.pause()
    fake.kernel("lost")
    recorder.resume()
    fake.kernel("b")
    assert fake.callbacks_enabled() > 0
""")
    assert names(query) == ["a", "b"]
    assert query("SELECT count(*) FROM PYREC_WINDOW") == [(2,)]


def test_many_windows_leave_no_rings_behind(run: Any, query: Any) -> None:
    run("""
def resident_kb(): return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
with profiling_lab.record(OUT) as recorder:
    for window in range(300):
        fake.kernel("a")
        recorder.pause()
        recorder.resume()
        if window == 50: before = resident_kb()
    grown = resident_kb() - before
    assert grown < 50_000, f"{grown} kB more: a ring is 1200 kB"
""")
    assert len(names(query)) == 300


def test_by_the_clock(run: Any, query: Any) -> None:
    run("""
from profiling_lab.recording import Schedule
with profiling_lab.record(OUT, schedule=Schedule(delay_s=0.3, duration_s=0.3)):
    begin = time.time()
    while not fake.callbacks_enabled(): fake.kernel("before"); time.sleep(0.01)
    assert time.time() - begin > 0.2
    while fake.callbacks_enabled(): fake.kernel("within"); time.sleep(0.01)
    fake.kernel("after")
""")
    found = names(query)
    assert "within" in found and "before" not in found[1:] and "after" not in found


def test_by_signal(run: Any, query: Any) -> None:
    run("""
import signal
from profiling_lab.recording import Schedule
before = signal.getsignal(signal.SIGUSR1)
with profiling_lab.record(OUT, schedule=Schedule(signal="usr1")):
    fake.kernel("before")
    os.kill(os.getpid(), signal.SIGUSR1)
    fake.kernel("within")
    os.kill(os.getpid(), signal.SIGUSR1)
    fake.kernel("after")
assert signal.getsignal(signal.SIGUSR1) == before
""")
    assert names(query) == ["within"]


@pytest.mark.parametrize("name", ["KILL", "STOP", "SEGV", "INT", "NOSUCH", ""])
def test_a_signal_that_cannot_be_used(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be used to open and close windows"):
        Schedule(signal=name)


def test_a_signal_schedule_off_the_main_thread_leaves_no_file(run: Any, tmp_path: Path) -> None:
    run("""
import threading
from profiling_lab.recording import Recorder, Schedule
def body():
    try: Recorder(OUT, schedule=Schedule(signal="USR1")).start()
    except profiling_lab.errors.UsageError as error: said.append(str(error))
said = []
thread = threading.Thread(target=body); thread.start(); thread.join()
assert "only the main thread" in said[0], said
from profiling_lab import _recorder
assert not _recorder.recording()
""")
    assert not list(tmp_path.glob("out.sqlite*"))


def test_the_programs_own_handler_of_the_signal_stays(run: Any) -> None:
    run("""
import faulthandler, signal
from profiling_lab.recording import Schedule
mine = lambda *_: None
with profiling_lab.record(OUT, schedule=Schedule(signal="USR1")):
    signal.signal(signal.SIGUSR1, mine)
assert signal.getsignal(signal.SIGUSR1) is mine
faulthandler.register(signal.SIGUSR2)  # Python does not know this handler
with profiling_lab.record(OUT, overwrite=True, schedule=Schedule(signal="USR2")):
    pass
""")


def test_a_timer_that_ran_out_at_the_end_changes_no_later_recording(run: Any, query: Any) -> None:
    run("""
from profiling_lab.recording import Recorder, Schedule
first = Recorder(OUT + ".first", schedule=Schedule(delay_s=60, duration_s=0.05))
first.start()
late = first._schedule_runner
first.stop()
with profiling_lab.record(OUT):
    late._open_by_clock()  # as its timer's thread does, if stop() came a moment too late to cancel it
    late.pause()
    time.sleep(0.2)
    fake.kernel("a")
""")
    assert names(query) == ["a"]
    meta = dict(query("SELECT name, value FROM PYREC_META"))
    assert "windows" not in meta, "it never paused"


def test_a_recorder_that_is_used_again_begins_its_plan_again(run: Any, query: Any) -> None:
    run("""
from profiling_lab.recording import Recorder, Schedule
recorder = Recorder(OUT, overwrite=True, schedule=Schedule.of_steps("1:2", step_by="calls", warmup=0))
for turn in range(2):
    recorder.start()
    for step in range(3):
        fake.kernel(f"turn{turn}_step{step}")
        profiling_lab.step()
    recorder.stop()
""")
    assert names(query) == ["turn1_step1"]


def test_a_call_that_began_in_a_window_is_kept_though_it_ends_later(run: Any, query: Any) -> None:
    run("""
from profiling_lab import _recorder
from fake_driver import LAUNCH, RUNTIME
with profiling_lab.record(OUT) as recorder:
    call = fake.library.fake_enter(RUNTIME, LAUNCH)
    assert _recorder.close_window()
    fake.library.fake_exit(RUNTIME, LAUNCH, call, 0)
    fake.library.fake_exit(RUNTIME, LAUNCH, fake.library.fake_enter(RUNTIME, LAUNCH), 0)  # begins after it
    recorder.pause()
""")
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME") == [(1,)]


def test_a_window_is_opened_by_a_running_recording_alone(run: Any) -> None:
    run("""
from profiling_lab import _recorder
from profiling_lab.recording import Recorder, Schedule
recorder = Recorder(OUT, schedule=Schedule(warmup=5, active=1))
recorder.start()
recorder.stop()
assert not _recorder.open_window()
""")


def test_ranges_around_windows_that_follow_each_other_fast_are_kept(run: Any, query: Any) -> None:
    pytest.importorskip("nvtx", reason="the nvtx package is not installed")
    run("""
with profiling_lab.record(OUT) as recorder:
    import nvtx
    around = nvtx.start_range("around")
    for number in range(20):
        with nvtx.annotate(f"inner{number}"):
            fake.kernel("a")
        recorder.pause()
        if number == 2: nvtx.end_range(around)
        recorder.resume()
""")
    texts = query("SELECT s.value FROM NVTX_EVENTS n JOIN StringIds s ON s.id = n.textId")
    assert {"around", *(f"inner{number}" for number in range(20))} <= {text for (text,) in texts}


def test_a_window_that_was_never_reached_is_said(run_warm: Any, query: Any) -> None:
    run_warm(f"""
{TRAINING}
with profiling_lab.record(OUT, schedule=profiling_lab.Schedule.of_steps("10:15")) as recorder:
    train(3)
assert recorder.summary.reasons["schedule"] == (
    "nothing was recorded; the schedule was steps 10:15: 3 steps ended, by optimizer"), recorder.summary
""")
    assert query("SELECT count(*) FROM PYREC_LAUNCH") == [(0,)]


def test_the_size_of_the_capture_is_bounded_and_the_end_is_said(run: Any, query: Any) -> None:
    run("""
from profiling_lab import _recorder
recorder = profiling_lab.recording.Recorder(OUT, most_bytes=200_000, flush_period_ms=20)
recorder.start()
end = time.time() + 60
while "stopped_at_bytes" not in _recorder.status() and time.time() < end:
    for _ in range(50): fake.kernel("a")
    time.sleep(0.005)
for _ in range(2000): fake.kernel("too late")
recorder.resume()
fake.kernel("too late")
summary = recorder.stop()
assert "ended early" in summary.reasons["size"], summary
assert int(summary.meta["spool_bytes"]) < 600_000, summary.meta
""")
    found = names(query)
    assert len(found) > 100 and "too late" not in found
    texts = [text for (text,) in query("SELECT text FROM DIAGNOSTIC_EVENT")]
    assert any("200000 bytes" in text for text in texts)


def test_a_killed_recording_keeps_its_open_window(run: Any, tmp_path: Path, query: Any) -> None:
    run(
        """
import signal
from profiling_lab.recording import Schedule
schedule = Schedule.of_steps("1:", step_by="calls")
recorder = profiling_lab.recording.Recorder(OUT, schedule=schedule, flush_period_ms=10)
recorder.start()
fake.kernel("before")
profiling_lab.step()
fake.kernel("within")
time.sleep(0.3)
os.kill(os.getpid(), signal.SIGKILL)
""",
        ok=False,
    )
    command = [sys.executable, "-m", "profiling_lab", "recover", str(tmp_path / "out.sqlite.spool")]
    env = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    subprocess.run(command, check=True, env=env, cwd="/", timeout=600)
    assert names(query) == ["within"]
    assert query("SELECT end, firstStep FROM PYREC_WINDOW") == [(None, 1)]


def test_a_forked_child_changes_nothing(run: Any, query: Any) -> None:
    run("""
from profiling_lab.recording import Schedule
with profiling_lab.record(OUT, schedule=Schedule.of_steps("1:2", step_by="calls")):
    child = os.fork()
    if child == 0:
        for _ in range(5): profiling_lab.step()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    fake.kernel("step0")
    profiling_lab.step()
    fake.kernel("step1")
""")
    assert names(query) == ["step1"]


SCRIPT = """
import sys
from fake_driver import *
import torch
fake = Fake()
optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    fake.kernel(f"step{step}")
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--steps", "3:5"], ["step3", "step4"]),
        (["--active", "1", "--every", "4", "--repeat", "2"], ["step0", "step4"]),
        (["--wait", "2", "--warmup", "1", "--active", "2", "--repeat", "1"], ["step3", "step4"]),
    ],
)
def test_the_command(
    fake_library: Path, tmp_path: Path, query: Any, arguments: list[str], expected: list[str]
) -> None:
    done = command(fake_library, tmp_path, arguments)
    assert done.returncode == 0, done.stderr
    assert names(query) == expected


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (
            ["--steps", "3:5", "--active", "2"],
            "--steps says which steps: it cannot be combined with --active",
        ),
        (["--steps", "5:3"], "A < B"),
        (["--delay", "1", "--active", "3"], "cannot be combined with steps"),
        (["--signal", "FOO"], "'FOO' cannot be used"),
        (["--step-by", "calls", "--delay", "1"], "--step-by needs --steps"),
        (["--status", "1e300"], "a number of seconds above 0, not 1e300"),
        (["--max-size", "many"], "expected a size such as 500MB"),
        (["--status", "0"], "a number of seconds above 0, not 0"),
    ],
)
def test_wrong_arguments(fake_library: Path, tmp_path: Path, arguments: list[str], part: str) -> None:
    done = command(fake_library, tmp_path, arguments)
    assert done.returncode == 2 and part in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.sqlite*"))


def test_the_command_says_that_no_window_was_reached(fake_library: Path, tmp_path: Path) -> None:
    done = command(fake_library, tmp_path, ["--steps", "100:"])
    assert done.returncode == 0 and "nothing was recorded; the schedule was from step 100 on" in done.stderr


def test_the_live_status_line(fake_library: Path, tmp_path: Path) -> None:
    wait = "import time\nfake.kernel('a')\ntime.sleep(2.5)\n"  # the consumer flushes every second
    done = command(fake_library, tmp_path, ["--status", "0.1"], more=wait)
    lines = [line for line in done.stderr.splitlines() if " so far" in line or "capture " in line]
    assert lines and "11 kernels, 11 CUDA calls, nothing dropped, capture" in lines[-1], done.stderr


def command(
    library: Path, folder: Path, arguments: list[str], more: str = ""
) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(SCRIPT + more)
    here = Path(__file__).parent
    env = {
        **os.environ,
        "PYTHONPATH": f"{PACKAGE_ROOT}{os.pathsep}{here}",
        "PROFILING_LAB_CUPTI": str(library),
    }
    arguments = ["record", "-o", "out.sqlite", *arguments, str(script), "10"]
    return warm_torch.run(["-m", "profiling_lab", *arguments], folder, env)
