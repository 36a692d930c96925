# SPDX-License-Identifier: Apache-2.0
"""CUPTI makes launches dearer as long as it is in the process. On demand it is there in windows alone."""

from __future__ import annotations

from typing import Any

GRAPH_TRACE, KERNELS = 51, 10
MODES = f"""
from profiling_lab import _recorder
GRAPH_TRACE, KERNELS, BEGIN, END, CREATE = {GRAPH_TRACE}, {KERNELS}, 313, 316, 286
def attached(): return bool(fake.kind_enabled(KERNELS))
def capture(): fake.call(BEGIN); fake.call(END)
def whole_graphs(): return bool(fake.kind_enabled(GRAPH_TRACE))
"""


def kernels(query: Any) -> list[str]:
    return [
        name
        for (name,) in query(
            "SELECT s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.shortName"
            " ORDER BY k.start"
        )
    ]


def test_before_the_first_window_nothing_is_switched_on(run: Any, query: Any) -> None:
    run(f"""
{MODES}
from profiling_lab.recording import Schedule
with profiling_lab.record(OUT, schedule=Schedule.of_steps("3:4", step_by="calls"), cupti_leaves=True):
    for step in range(6):
        assert fake.subscribed()
        assert attached() == bool(fake.callbacks_enabled()) == (step in (2, 3)), step
        fake.kernel(f"step{{step}}")
        profiling_lab.step()
    assert fake.times_finalized() == 1
""")
    assert kernels(query) == ["step3"]


def test_names_are_read_before_they_are_gone(run: Any, query: Any) -> None:
    run("""
recorder = profiling_lab.recording.Recorder(OUT, flush_period_ms=60_000, cupti_leaves=True)
recorder.start()
for window in range(30):
    fake.kernel(f"kernel{window}")
    recorder.pause()
    recorder.resume()
summary = recorder.stop()
assert summary.kernels == 30 and summary.dropped == 0, summary
held = int(summary.meta["overhead_buffer_bytes"])
assert held <= 48 << 20, f"{held}: 4 MB of each window do not come back from a CUPTI that left"
""")
    assert kernels(query) == [f"kernel{window}" for window in range(30)]


def test_graphs_are_recorded_whole_unless_one_may_be_older_than_that(run: Any) -> None:
    run(f"""
{MODES}
from profiling_lab.recording import Recorder, Schedule
def recorded_whole(before):
    recorder = Recorder(OUT, overwrite=True, schedule=Schedule(wait=10**6, active=1), cupti_leaves=True)
    recorder.start()
    before()
    recorder.resume(); assert attached(); found = whole_graphs()
    recorder.stop()
    return found
assert recorded_whole(lambda: None)
assert not recorded_whole(capture), "replaying it would crash"
assert not recorded_whole(lambda: fake.call(CREATE)), "made without a capture"
""")


def test_a_program_with_graphs_keeps_cupti_whose_memory_they_write_into(run: Any) -> None:
    run(f"""
{MODES}
with profiling_lab.record(OUT, cupti_leaves=True) as recorder:
    recorder.pause(); assert fake.times_finalized() == 1
    recorder.resume(); assert whole_graphs()
    fake.call(BEGIN)
    recorder.pause()
    assert fake.times_finalized() == 1 and not attached() and not fake.callbacks_enabled()
    assert whole_graphs(), "of what is being captured too"
    fake.call(END)
    assert _recorder.captures_under_way() == 0
    recorder.resume(); assert attached() and whole_graphs()
    recorder.pause(); assert not attached() and fake.subscribed()
assert fake.times_finalized() == 1 and not fake.subscribed()
""")


def test_a_cupti_that_cannot_leave_stays_switched_off(run: Any, query: Any) -> None:
    run(f"""
{MODES}
fake.fail(b"Finalize", 33)
with profiling_lab.record(OUT, cupti_leaves=True) as recorder:
    fake.kernel("a")
    recorder.pause()
    assert not attached() and not fake.callbacks_enabled() and whole_graphs()
    fake.kernel("lost")
    recorder.resume()
    fake.kernel("b")
assert not fake.subscribed()
""")
    assert kernels(query) == ["a", "b"]


def test_nobody_asked_for_it(run: Any) -> None:
    run(f"""
{MODES}
with profiling_lab.record(OUT) as recorder:
    recorder.pause(); assert not attached() and whole_graphs()
    recorder.resume(); assert attached()
assert fake.times_finalized() == 0 and not fake.subscribed()
""")


def test_stop_takes_cupti_out_where_the_process_goes_on(run: Any) -> None:
    run("""
with profiling_lab.record(OUT, cupti_leaves=True): fake.kernel("a")
assert fake.times_finalized() == 1 and not fake.subscribed()
with profiling_lab.record(OUT, overwrite=True, cupti_leaves=True) as recorder: fake.kernel("b")
assert recorder.summary.kernels == 1 and fake.times_finalized() == 2
""")


def test_another_profiler_keeps_its_cupti(run: Any) -> None:
    run(f"""
{MODES}
import types
recorder = profiling_lab.recording.Recorder(OUT, autograd=False, cupti_leaves=True)
recorder.start()
kind = types.SimpleNamespace(_profiler_type=lambda: "ActiveProfilerType.KINETO")
sys.modules["torch"] = types.SimpleNamespace(_C=types.SimpleNamespace(_autograd=kind), __version__="2.11")
recorder.pause()
assert fake.times_finalized() == 0 and not attached()
recorder.stop()
assert fake.times_finalized() == 0 and not fake.subscribed()
""")


def test_a_client_that_took_cupti_in_a_pause_is_said(run: Any, query: Any) -> None:
    run("""
recorder = profiling_lab.recording.Recorder(OUT, cupti_leaves=True)
recorder.start()
fake.fail(b"ActivityRegisterCallbacks", 39)
recorder.pause()
recorder.resume()
fake.launch()
recorder.stop()
""")
    texts = [text for (text,) in query("SELECT text FROM DIAGNOSTIC_EVENT")]
    assert any("this window has no GPU activity" in text for text in texts), texts
