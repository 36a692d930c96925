# SPDX-License-Identifier: Apache-2.0
"""A program written for torch.profiler records with one other import, under the fake CUPTI."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from profiling_lab.errors import UsageError

torch = pytest.importorskip("torch")

LOOP = """
from profiling_lab import profile, trace_handler
import profiling_lab, torch, warnings
warnings.filterwarnings("ignore", "Profiler won't be using warmup")  # torch's own
from torch.profiler import ProfilerActivity, schedule
ready = []
def train(prof, steps):
    for step in range(steps):
        fake.kernel(f"step{step}")
        prof.step()
"""


def kernels(path: Path) -> list[str]:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as file:
        rows = file.execute(
            "SELECT s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.shortName"
            " ORDER BY k.start"
        )
        return [name for (name,) in rows]


def test_each_active_window_has_its_file_and_is_reported(run_warm: Any, tmp_path: Path) -> None:
    run_warm(
        LOOP
        + """
def handler(prof):
    ready.append((prof.path.name, prof.step_num, prof.summary.kernels))
with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], with_stack=True,
    schedule=schedule(skip_first=1, wait=1, warmup=1, active=2, repeat=2), on_trace_ready=handler, path=OUT,
) as prof:
    train(prof, 12)
assert ready == [("out.sqlite", 5, 3), ("out-2.sqlite", 9, 3)], ready  # 3: what was captured, with warm-up
assert [path.name for path in prof.paths] == ["out.sqlite", "out-2.sqlite"]
"""
    )
    assert kernels(tmp_path / "out.sqlite") == ["step3", "step4"]
    assert kernels(tmp_path / "out-2.sqlite") == ["step7", "step8"]


def test_without_a_schedule_all_is_recorded_and_reported_at_the_end(run_warm: Any, tmp_path: Path) -> None:
    run_warm(
        LOOP
        + """
with profile(on_trace_ready=lambda prof: ready.append(prof.path), path=OUT) as prof:
    train(prof, 3)
    assert not ready
assert len(ready) == 1
"""
    )
    assert kernels(tmp_path / "out.sqlite") == ["step0", "step1", "step2"]


def test_a_window_that_the_program_does_not_reach_the_end_of_is_kept(run_warm: Any, tmp_path: Path) -> None:
    run_warm(
        LOOP
        + """
prof = profile(schedule=schedule(wait=1, warmup=0, active=9), on_trace_ready=ready.append, path=OUT)
prof.start()
train(prof, 3)
prof.stop()
prof.stop()
assert ready == [prof], ready
"""
    )
    assert kernels(tmp_path / "out.sqlite") == ["step1", "step2"]


def test_a_warm_up_that_comes_to_nothing_leaves_no_file(run_warm: Any, tmp_path: Path) -> None:
    run_warm(
        LOOP
        + """
with profile(schedule=schedule(wait=0, warmup=5, active=1), on_trace_ready=ready.append, path=OUT) as prof:
    train(prof, 3)
assert not ready and not prof.paths
"""
    )
    assert not list(tmp_path.glob("out*"))


def test_a_schedule_that_breaks_off_loses_nothing(run_warm: Any, tmp_path: Path) -> None:
    run_warm(
        LOOP
        + """
from torch.profiler import ProfilerAction as A
plan = [A.RECORD, A.NONE, A.RECORD, A.WARMUP, A.RECORD_AND_SAVE, A.NONE]
with profile(schedule=lambda step: plan[step], on_trace_ready=ready.append, path=OUT) as prof:
    train(prof, 5)
assert len(ready) == 3
"""
    )
    assert [kernels(tmp_path / f"out{n}.sqlite") for n in ("", "-2", "-3")] == [
        ["step0"],
        ["step2"],
        ["step4"],
    ]


def test_what_on_trace_ready_raises_is_the_programs_and_the_file_is_whole(
    run_warm: Any, tmp_path: Path
) -> None:
    run_warm(
        LOOP
        + """
def broken(prof):
    ready.append(prof.path)
    raise ValueError("mine")
try:
    plan = schedule(wait=0, warmup=0, active=1, repeat=1)
    with profile(schedule=plan, on_trace_ready=broken, path=OUT) as prof: train(prof, 3)
except ValueError as error:
    assert str(error) == "mine"
else:
    raise SystemExit("the program's own error is lost")
"""
    )
    assert kernels(tmp_path / "out.sqlite") == ["step0"]


def test_the_failure_of_the_program_is_what_its_caller_sees(run_warm: Any, tmp_path: Path) -> None:
    run_warm(
        LOOP
        + """
def broken(prof): raise ValueError("mine")
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    try:
        with profile(on_trace_ready=broken, path=OUT) as prof:
            fake.kernel("before")
            raise KeyError("theirs")
    except KeyError: pass
assert ["ValueError: mine" in str(w.message) for w in told] == [True], told
"""
    )
    assert kernels(tmp_path / "out.sqlite") == ["before"]


def test_an_old_file_is_not_replaced_and_what_cannot_be_recorded_is_one_warning(
    run_warm: Any, tmp_path: Path
) -> None:
    (tmp_path / "out.sqlite").write_text("mine")
    run_warm(
        LOOP
        + """
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    asked = dict(record_shapes=True, profile_memory=True, with_flops=True, with_modules=True)
    with profile(**asked, path=OUT) as prof: train(prof, 1)
    prof.add_metadata("a", "b"); prof.add_metadata_json("c", "{}")
assert [str(w.message) for w in told] == [
    "not recorded: record_shapes, profile_memory, with_flops", "metadata is not recorded"], told
"""
    )
    assert (tmp_path / "out.sqlite").read_text() == "mine"
    assert kernels(tmp_path / "out-2.sqlite") == ["step0"]


def test_during_another_recording_the_program_goes_on_and_its_steps_are_reported(
    run_warm: Any, query: Any
) -> None:
    run_warm(
        LOOP
        + """
from profiling_lab.recording import Schedule
with profiling_lab.record(OUT, schedule=Schedule.of_steps("1:2", step_by="calls")):
    plan = schedule(wait=0, warmup=0, active=1)
    with warnings.catch_warnings(record=True) as told:
        with profile(schedule=plan, on_trace_ready=ready.append) as prof: train(prof, 4)
told = [str(one.message) for one in told]
assert not ready and len(told) == 1 and "already running" in told[0], told
"""
    )
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(1,)]


def test_lines_and_averages_name_the_line(run_warm: Any) -> None:
    run_warm(
        LOOP
        + """
with profile(path=OUT) as prof:
    for _ in range(3): fake.kernel("mine")
row = prof.lines().rows[0]
assert "fake_driver.py:" in row.key and row.kernels == 3, row
average = next(iter(prof.key_averages(group_by_stack_n=2)))
assert (average.count, average.self_device_time_total) == (3, 3.0), average
assert "script.py:" in average.key, average
table = prof.key_averages().table(sort_by="self_cuda_time_total", row_limit=-1, max_name_column_width=80)
assert "fake_driver.py:" in table and "script.py:" not in table and "kernels" in table, table
assert "script.py:" in prof.key_averages().table(sort_by="cuda_time_total", row_limit=5)
prof.export_stacks(OUT + ".stacks", "self_cuda_time_total")
assert "mine" in open(OUT + ".stacks").read()
"""
    )


@pytest.mark.parametrize("use_gzip", [False, True])
def test_the_trace_handler_keeps_recording_and_chrome_trace(
    run_warm: Any, tmp_path: Path, use_gzip: bool
) -> None:
    run_warm(
        LOOP
        + f"""
handler = trace_handler(os.path.join(os.path.dirname(OUT), "log"), worker_name="w", use_gzip={use_gzip})
with profile(schedule=schedule(wait=0, warmup=0, active=1, repeat=2), on_trace_ready=handler) as prof:
    train(prof, 4)
"""
    )
    names = sorted(path.name for path in (tmp_path / "log").iterdir())
    ending = ".pt.trace.json.gz" if use_gzip else ".pt.trace.json"
    assert [n for n in names if n.endswith(".sqlite")] == ["profile-2.sqlite", "profile.sqlite"]
    traces = [n for n in names if n.startswith("w.") and n.endswith(ending)]
    assert len(traces) == 2 and len(names) == 4
    if not use_gzip:
        assert json.loads((tmp_path / "log" / traces[0]).read_text())["traceEvents"]


def test_torchs_own_trace_handler_works(run_warm: Any, tmp_path: Path) -> None:
    run_warm(
        LOOP
        + """
from torch.profiler import tensorboard_trace_handler
folder = os.path.join(os.path.dirname(OUT), "tb")
with profile(on_trace_ready=tensorboard_trace_handler(folder), path=OUT) as prof:
    train(prof, 1)
"""
    )
    assert len(list((tmp_path / "tb").glob("*.pt.trace.json"))) == 1


def test_without_any_gpu_work_the_handlers_failure_is_a_warning(run_warm: Any, tmp_path: Path) -> None:
    run_warm(
        LOOP
        + """
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    with profile(on_trace_ready=trace_handler(os.path.dirname(OUT)), path=OUT): pass
assert len(told) == 1 and "the recording is in" in str(told[0].message), told
"""
    )
    assert (tmp_path / "out.sqlite").is_file()


def test_a_forked_child_changes_nothing(run_warm: Any, tmp_path: Path) -> None:
    run_warm(
        LOOP
        + """
with profile(schedule=schedule(wait=1, warmup=0, active=1, repeat=1), path=OUT) as prof:
    child = os.fork()
    if child == 0:
        for _ in range(5): prof.step()
        prof.stop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    train(prof, 3)
"""
    )
    assert kernels(tmp_path / "out.sqlite") == ["step1"]


def test_plans_of_another_kind_and_missing_folders_are_one_sentence(tmp_path: Path) -> None:
    from profiling_lab import Schedule, profile

    for wrong in (Schedule(), 5):
        with pytest.raises(UsageError, match="schedule must be a function of the step's number"):
            profile(schedule=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="does not exist"):
        profile(path=tmp_path / "none" / "run.sqlite").start()
    with pytest.raises(UsageError, match="no window has ended yet"):
        _ = profile().path
    with pytest.raises(TypeError):
        profile(no_such_option=1).start()
