# SPDX-License-Identifier: Apache-2.0
"""What recording takes of a program is a part of its own, and no prediction has it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from builders import TraceBuilder
from conftest import REPO
from made_traces.machine import PAUSE_NS, Machine, Recording, made
from made_traces.programs import PROGRAMS, gpu_bound, host_bound

from profiling_lab.analysis.critical_path.build import build_graph
from profiling_lab.analysis.critical_path.kinds import KINDS, Kind
from profiling_lab.analysis.critical_path.recorder_time import CUPTI_TIMES, recorder_time
from profiling_lab.records import replace
from profiling_lab.report.check import check_header
from profiling_lab.rules import RULES, Checked, run
from profiling_lab.trace import Trace

OWN_NS, EXIT_NS = (400, 900, 500), 200
RECORDED = Recording(OWN_NS, round(CUPTI_TIMES * (sum(OWN_NS) // 3 + EXIT_NS)), EXIT_NS)
IN_THE_MEAN = Recording((600,), round(CUPTI_TIMES * 600), each_noted=False)
OF_ONE_KIND = {
    "launches": 1,
    "device copies": 1,
    "pinned uploads": 1,
    "pageable uploads": 1,
    "pinned downloads": 1,
    "reads": 1,
    "launches and reads": 2,
    "uploads by value": 1,
    "events": 0,
    "waits": 0,
}
"""programs of benchmarks/recorder/recorder_workloads.py, and CUPTI's records for each operation"""
EACH = 300
"""operations of a step"""
UNKNOWN = Recording((600,), 2_000, each_noted=False, noted=False)


@pytest.mark.parametrize("recording", [RECORDED, IN_THE_MEAN], ids=["each call", "mean"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_without_its_recording_a_program_takes_what_it_takes(
    name: str, recording: Recording, tmp_path: Path
) -> None:
    truth = made(PROGRAMS[name], tmp_path / "plain.sqlite").by_line().step
    step = made(PROGRAMS[name], tmp_path / "run.sqlite", recording=recording).by_line().step
    assert step.plain_length_ns == pytest.approx(truth.length_ns, abs=3 * PAUSE_NS)
    if name not in (
        "GPU",
        "begun early",
        "two streams",
    ):  # the GPU sets the pace of these: a slower host is no longer step
        assert step.length_ns > truth.length_ns + 4 * PAUSE_NS


@pytest.mark.parametrize("factor", [0.0, 0.5])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_change_wins_what_it_wins_where_nothing_is_recorded(
    name: str, factor: float, tmp_path: Path
) -> None:
    found = made(PROGRAMS[name], tmp_path / "run.sqlite", recording=RECORDED)
    for line in sorted({site.frame.line for site in found.graph.sites if site.frame}):
        (row,) = found.what_if([f"train.py:{line}={factor}"]).rows
        truth = made(PROGRAMS[name], tmp_path / f"{line}.sqlite", {line: factor}).by_line()
        assert row.after_ns == pytest.approx(truth.step.length_ns, abs=4 * PAUSE_NS), line


def test_the_path_shows_the_recorder_as_the_profiler(tmp_path: Path) -> None:
    path = made(host_bound, tmp_path / "run.sqlite", recording=RECORDED).by_line()
    taken = sum(line.kind_ns.get(KINDS[Kind.PROFILER], 0) for line in path.lines)
    longer = path.step.length_ns - (path.step.plain_length_ns or 0)
    assert taken == pytest.approx(longer, abs=EXIT_NS) and taken > 0  # a path ends in the middle of a call
    (note,) = [note for note in path.notes if "without a recording" in note]
    assert f"{path.step.length_ns / 1e6:.3f} ms" in note
    assert f"about {(path.step.plain_length_ns or 0) / 1e6:.3f} ms" in note


def test_unknown_is_not_zero(tmp_path: Path) -> None:
    """Nothing is taken away, and it is said where the host sets the pace."""
    path = made(host_bound, tmp_path / "host.sqlite", recording=UNKNOWN).by_line()
    assert path.step.plain_length_ns is None
    assert [note for note in path.notes if "does not say what it took" in note]
    path = made(gpu_bound, tmp_path / "gpu.sqlite", recording=UNKNOWN).by_line()
    assert not [note for note in path.notes if "does not say what it took" in note]


@pytest.mark.parametrize("noted", ["3000000", "1" + "0" * 30])
def test_no_span_becomes_negative(noted: str, tmp_path: Path) -> None:
    """A file may note more than its calls took."""
    machine = Machine()
    machine.builder.row("PYREC_META", name="overhead_callback_ns", value=noted)
    machine.builder.row("PYREC_META", name="overhead_exit_ns", value=noted)
    for _ in range(5):
        host_bound(machine)
    with machine.write(tmp_path / "run.sqlite") as trace:
        graph = build_graph(trace, ())
    parts = graph.parts
    ours = parts.kind == Kind.PROFILER
    assert ours.any() and (parts.ns > 0).all()
    sums = np.bincount(parts.edge, weights=parts.ns, minlength=len(graph.source))
    assert (sums[parts.edge] == graph.after_ns[parts.edge]).all()


@pytest.mark.parametrize("value", ["", "-5", "many"])
def test_what_is_no_number_is_unknown(value: str, tmp_path: Path) -> None:
    builder = TraceBuilder().row("PYREC_META", name="overhead_callback_ns", value=value).launch("k", 1_000)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        found = recorder_time(trace)
    assert not found.inside_ns.any() and not found.behind_ns.any()


def test_only_launches_make_records_for_cupti(tmp_path: Path) -> None:
    builder = TraceBuilder().row("PYREC_META", name="overhead_callback_ns", value="500")
    builder.launch("k", 1_000).copy("HtoD", 1_000).call("cudaEventRecord").call("cudaStreamSynchronize")
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        found = recorder_time(trace)
    with_cupti = 500 + round(CUPTI_TIMES * 500)
    assert found.inside_ns.tolist() == [with_cupti, with_cupti, 500, 500]


def test_each_process_of_a_merged_recording_has_its_own(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for pid, value in ((100, "300"), (200, "700")):
        builder.row("PYREC_PROCESS", globalPid=builder.tid(1, pid) >> 24 << 24, name="overhead_callback_ns",
                    value=value)  # fmt: skip
        builder.call("cudaEventRecord", pid=pid)
    builder.launch("k", 1_000, pid=100)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        assert recorder_time(trace).inside_ns[:2].tolist() == [300, 700]


def test_check_says_what_recording_adds_to_a_step(tmp_path: Path) -> None:
    found: dict[str, Checked] = {}
    for name, recording in (("run", RECORDED), ("plain", None), ("unknown", UNKNOWN)):
        machine = Machine({}, recording)
        for _ in range(12):
            machine.step(True)
            for line in (10, 11, 12, 13):
                machine.host(line, 12_000)
                machine.kernel(line, 2_000)
                machine.sync(line + 10)
            machine.step(False)
        with machine.write(tmp_path / f"{name}.sqlite") as trace:
            found[name] = run(trace, RULES)
        assert any(finding.saving for finding in found[name].findings)
    each_ns = sum(OWN_NS) / 3 + EXIT_NS + RECORDED.cupti_ns
    assert found["run"].recording_ns is not None
    assert 4 * each_ns < found["run"].recording_ns < 8 * each_ns
    assert found["plain"].recording_ns is None and found["unknown"].recording_ns is None
    said = "  recording makes a step about "
    assert [line for line in check_header(found["run"]) if line.startswith(said)]
    little = replace(found["run"], recording_ns=found["run"].span_ns // found["run"].steps // 200)
    assert not [line for line in check_header(little) if line.startswith(said)]
    # What is saved is what the program saves where nothing is recorded.
    saved = {name: checked.findings[0].gain_per_step_ns for name, checked in found.items()}
    assert saved["run"] == pytest.approx(saved["plain"], abs=PAUSE_NS) and saved["plain"]


def test_what_cupti_takes_was_measured() -> None:
    """In a loop of launches what recording adds in all, in other programs CUPTI alone: for each of its
    records, as a multiple of our callback. Waits and events make none.
    """
    results = REPO / "benchmarks" / "results"
    text = "".join((results / f"recorder_{name}.jsonl").read_text() for name in ("overhead", "calls"))
    runs: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for row in map(json.loads, text.splitlines()):
        runs.setdefault((row["case"]["workload"], row["run"]), {})[row["provider"], row["metric"]] = row[
            "value"
        ]

    def newest(workload: str, provider: str) -> dict[tuple[str, str], float]:
        """A run that noted what our callback took."""
        return [v for (of, _), v in runs.items() if of == workload and (provider, "callback") in v][-1]

    ours = "recorder: everything"
    loop = newest("loop", ours)
    times = [loop[ours, "overhead_per_call"] / loop[ours, "callback"] - 1]
    ours, alone = "profiling-lab record", "CUPTI's kernel, copy and set records alone"
    hugging = newest("hugging face", ours)
    added_ns = (hugging["CUPTI's kernel records alone", "overhead"] - 1) * hugging["plain", "step_time"]
    times.append(added_ns / hugging[ours, "calls"] / hugging[ours, "callback"])
    for workload, records in OF_ONE_KIND.items():
        run = newest(workload, ours)
        added_ns = (run[alone, "overhead"] - 1) * run["plain", "step_time"]
        if records:
            times.append(added_ns / (records * EACH) / run[ours, "callback"])
        else:
            assert abs(added_ns) < 100 * EACH, workload
    assert np.exp(np.log(times).mean()) == pytest.approx(CUPTI_TIMES, rel=0.1)
    assert all(1 / 1.7 < each / CUPTI_TIMES < 1.7 for each in times), times
