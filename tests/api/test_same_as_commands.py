# SPDX-License-Identifier: Apache-2.0
"""Each table of the command line is one call away, with the same values and the same errors."""

from __future__ import annotations

import argparse
import inspect
import json
import shutil
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from job_builder import Job
from memory_model.recordings import MemoryRecording, training

import profiling_lab
from profiling_lab.api import Table, TraceTables
from profiling_lab.cli import main, module_of
from profiling_lab.errors import LabError

REPO = Path(__file__).resolve().parents[2]
EXERCISES = REPO / "profiling_lab" / "exercises"
RECORDED = EXERCISES / "e17_python_backtrace" / "recorded"
TRACES = {
    "ours": RECORDED / "demo_h200.sqlite",
    "nsys": RECORDED / "nsys_h200.sqlite",
    "torch": REPO / "tests" / "data" / "ddp_h200" / "kineto.rank0.json.gz",
    "cpu": REPO / "tests" / "data" / "fake_recording.sqlite",
}
SLOW = EXERCISES / "e26_many_small_kernels" / "recorded" / "starter_h200.sqlite"
OWN = "torch/optim/sgd.py"
FAST = EXERCISES / "e26_many_small_kernels" / "recorded" / "solution_h200.sqlite"

Ask = Callable[[TraceTables], Table[Any]]
OF_A_TRACE: dict[str, Ask] = {
    "info": lambda trace: trace.info(),
    "lines": lambda trace: trace.lines(limit=30),
    "lines --limit 0": lambda trace: trace.lines(),
    "lines --by function --phase backward": lambda trace: trace.lines("function", phase="backward", limit=30),
    "lines --sort inclusive --depth 2": lambda trace: trace.lines(sort="inclusive", depth=2, limit=30),
    "lines --by layer --limit 3": lambda trace: trace.lines(by="layer", limit=3),
    "lines --tree --limit 0": lambda trace: trace.call_tree(),
    "lines --tree --depth 2 --min-share 5": lambda trace: trace.call_tree(depth=2, min_share=0.05, limit=30),
    "lines --host": lambda trace: trace.host_lines(limit=30),
    "lines --host --by function --sort inclusive --depth 2": lambda trace: trace.host_lines(
        "function", sort="inclusive", depth=2, limit=30
    ),
    "kernels": lambda trace: trace.kernels(limit=10),
    "kernels --group-by grid --stats --occupancy": lambda trace: trace.kernels(
        "grid", stats=True, occupancy=True, limit=10
    ),
    "kernels --phases --depth 0": lambda trace: trace.kernels(phases=True, depth=0, limit=10),
    "kernels --totals": lambda trace: trace.kernels(totals=True, limit=10),
    "apis --lines 5": lambda trace: trace.apis(lines=5, limit=20),
    "apis --launch": lambda trace: trace.launches(limit=20),
    "copies --peak 55": lambda trace: trace.copies(peak=55, limit=20),
    "copies --by direction --limit 0": lambda trace: trace.copies("direction"),
    "syncs": lambda trace: trace.syncs(limit=20),
    "roofline --by op": lambda trace: trace.roofline("op", limit=20),
    "ranges": lambda trace: trace.ranges(limit=25),
    "ranges --tree --merge-numbers --stats": lambda trace: trace.ranges(
        tree=True, merge_numbers=True, stats=True, limit=25
    ),
    "streams": lambda trace: trace.streams(limit=30),
    "steps": lambda trace: trace.steps(limit=50),
    "steps --host": lambda trace: trace.steps(host=True, limit=50),
    "gaps": lambda trace: trace.gaps(limit=15),
    "critical-path": lambda trace: trace.critical_path(limit=15),
    "critical-path --segments": lambda trace: trace.critical_path(segments=True, limit=15),
    "critical-path --what-if all": lambda trace: trace.critical_path(what_if="all", limit=15),
    "critical-path --what-if kernel=0.5 --what-if copy=0": lambda trace: trace.critical_path(
        what_if=["kernel=0.5", "copy=0"], limit=15
    ),
    "gaps --by gap": lambda trace: trace.gaps("gap", limit=15),
    "overlap": lambda trace: trace.overlap(limit=30),
    "overlap --by stream": lambda trace: trace.overlap("stream", limit=30),
    "overlap --by pair --limit 2": lambda trace: trace.overlap("pair", limit=2),
    "check": lambda trace: trace.check(limit=20),
    "check --only bound,gpu-gaps --whole": lambda trace: trace.check("bound,gpu-gaps", whole=True, limit=20),
    "check --skip bound --set dataloader.share=10%": lambda trace: trace.check(
        skip=["bound"], set={"dataloader.share": "10%"}, limit=20
    ),
}  # fmt: skip
OPENED: dict[str, dict[str, Any]] = {
    "--step 1:3": {"step": "1:3"},
    "--step -1": {"step": -1},
    "--range 10ms:40ms --device 0": {"range": "10ms:40ms", "device": 0},
    "--nvtx training_step/1 --own train_model.py": {"nvtx": "training_step/1", "own": "train_model.py"},
}


def printed(capsys: pytest.CaptureFixture[str], command: str, *arguments: object) -> str:
    """The JSON, or the sentence on standard error and the exit code."""
    name, *options = command.split()
    status = main([name, *map(str, arguments), *options, "--format", "json"])
    out, err = capsys.readouterr()
    return out or f"{err.removeprefix(f'profiling-lab {name}: ').strip()} ({status})"


def same(table: Callable[[], Table[Any]], text: str) -> None:
    try:
        answer = table()
    except LabError as error:
        assert text == f"{error} ({error.exit_code})"
        return
    assert answer.to_json() == text
    envelope = json.loads(text)
    assert answer.to_dicts() == envelope["data"]["rows"] == [dict(row) for row in answer]
    assert answer.total_matched == envelope["data"]["total_matched"]
    assert all(tuple(record) == answer.columns for record in answer.to_dicts())
    assert json.loads(json.dumps(answer.facts)) == envelope["trace"]
    assert json.loads(json.dumps(answer.coverage)) == envelope["coverage"]
    assert json.loads(json.dumps(answer.summary)) == envelope["data"].get("summary")


@pytest.mark.parametrize("trace", TRACES)
def test_tables_of_a_trace(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    with profiling_lab.open(TRACES[trace]) as tables:
        for command, ask in OF_A_TRACE.items():
            same(partial(ask, tables), printed(capsys, command, TRACES[trace]))


@pytest.mark.parametrize("options", OPENED)
def test_tables_of_a_part(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    with profiling_lab.open(TRACES["ours"], **OPENED[options]) as tables:
        for command in ("lines", "kernels", "info"):
            limit = {} if command == "info" else {"limit": 10}
            text = printed(capsys, f"{command} {options} {'--limit 10' if limit else ''}", TRACES["ours"])
            same(partial(getattr(tables, command), **limit), text)
        if "step" in OPENED[options]:
            step = OPENED[options]["step"]
            again = tables.window(step=0).window(step=step).lines(limit=10).to_json()
            assert again == tables.lines(limit=10).to_json(), "a part is one of the whole trace"


def test_steps_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    with profiling_lab.open(TRACES["ours"], steps_by="forward", step=2) as tables:
        for command in ("steps --limit 0", "gaps --limit 0"):
            text = printed(capsys, f"{command} --steps-by forward --step 2", TRACES["ours"])
            same(getattr(tables, command.split()[0]), text)


def test_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = MemoryRecording()
    training(recording, 6, keep=3 << 20)
    path = recording.finish().write(tmp_path / "run.sqlite")
    asks: dict[str, Ask] = {
        "memory": lambda trace: trace.memory(limit=20),
        "memory --by kind --lines 1": lambda trace: trace.memory("kind", lines=1, limit=20),
        "memory --at end --limit 2": lambda trace: trace.memory(at="end", limit=2),
        "memory --at 100us --limit 0": lambda trace: trace.memory(at="100us"),
        "memory --at soon": lambda trace: trace.memory(at="soon"),
        "memory --growth --limit 0": lambda trace: trace.memory_growth(),
        "memory --timeline 9": lambda trace: trace.memory_timeline(9),
    }
    for file in (path, TRACES["ours"]):  # and one without a history
        with profiling_lab.open(file) as trace:
            for command, ask in asks.items():
                same(partial(ask, trace), printed(capsys, command, file))


@pytest.mark.parametrize(
    ("command", "ask"),
    [
        ("rules", TraceTables.rules),
        ("rules data-loader", lambda: TraceTables.rules("data-loader")),
        ("rules dataloader", lambda: TraceTables.rules("dataloader")),
        ("rules --set dataloader.share=10%", lambda: TraceTables.rules(set=["dataloader.share=10%"])),
    ],
)
def test_rules(command: str, ask: Callable[[], Table[Any]], capsys: pytest.CaptureFixture[str]) -> None:
    same(ask, printed(capsys, command))


def test_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "diff --limit 0", SLOW, FAST)
    same(lambda: profiling_lab.diff(SLOW, FAST), text)
    with profiling_lab.open(SLOW) as before, profiling_lab.open(FAST) as after:
        same(lambda: profiling_lab.diff(before, [after]), text)
    theirs = printed(capsys, f"diff --own {OWN} --limit 0", SLOW, FAST)
    assert theirs != text and json.loads(theirs)["data"]["rows"]
    same(lambda: profiling_lab.diff(SLOW, FAST, own=OWN), theirs)
    with (
        profiling_lab.open(SLOW, own=OWN) as before,
        profiling_lab.open(FAST, own=OWN) as after,
    ):
        same(lambda: profiling_lab.diff(before, after), theirs)
    with profiling_lab.open(SLOW, step="1:") as before, profiling_lab.open(FAST, step="1:") as after:
        text = printed(capsys, "diff --step 1: --limit 0", SLOW, FAST)
        same(lambda: profiling_lab.diff(before, after), text)
    text = printed(capsys, "diff --by kernel --gate 3% --budget step<1ms --limit 5", SLOW, FAST)
    same(
        lambda: profiling_lab.diff(str(SLOW), FAST, by="kernel", gate="3%", budget="step<1ms", limit=5), text
    )
    baseline = tmp_path / "main.json"
    assert main(["diff", "--save", str(baseline), str(SLOW)]) == 0
    capsys.readouterr()
    same(lambda: profiling_lab.diff(baseline, FAST), printed(capsys, "diff --limit 0", baseline, FAST))


def test_diff_of_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name, keep in (("before", 0), ("after", 3 << 20)):
        recording = MemoryRecording()
        training(recording, 6, keep=keep)
        paths.append(recording.finish().write(tmp_path / f"{name}.sqlite"))
    text = printed(capsys, "diff --memory --limit 0", *paths)
    same(lambda: profiling_lab.diff_memory(*paths), text)
    with profiling_lab.open(paths[1]) as after:
        same(lambda: profiling_lab.diff_memory(paths[0], after), text)
    text = printed(capsys, "diff --memory --by function --gate-memory 1% --limit 3", *paths)
    same(lambda: profiling_lab.diff_memory(*paths, by="function", gate_memory="1%", limit=3), text)
    text = printed(capsys, "diff --gate-memory 1% --limit 0", *paths)
    same(lambda: profiling_lab.diff(*paths, gate_memory="1%"), text)
    text = printed(capsys, "diff --memory", paths[0], SLOW)
    same(lambda: profiling_lab.diff_memory(paths[0], SLOW), text)
    assert "no history" in text and text.endswith("(3)")


def test_diff_of_what_was_opened_in_two_ways() -> None:
    with profiling_lab.open(SLOW, own="train.py") as before, profiling_lab.open(FAST) as after:
        with pytest.raises(LabError, match="expected all to be opened with the same own and steps_by"):
            profiling_lab.diff(before, after)
        assert profiling_lab.diff(before, after, own="train.py").result.captures_before


def test_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(ranks=4, steps=5)
    job.slow_compute[3] = 2_000_000
    job.write(tmp_path, facts=True)
    for by in ("rank", "collective", "step", "line", "path"):
        text = printed(capsys, f"ranks --jobs 1 --by {by} --limit 3", tmp_path)
        same(partial(profiling_lab.ranks, tmp_path, by=by, limit=3), text)
    text = printed(capsys, "ranks --rank 0 --rank 3 --step 2: --limit 0", tmp_path)
    same(lambda: profiling_lab.ranks(sorted(tmp_path.iterdir()), rank=[0, 3], step="2:"), text)
    text = printed(capsys, "ranks --rank 9", tmp_path)
    same(lambda: profiling_lab.ranks(tmp_path, rank=9), text)
    for by in ("line", "group", "kind", "collective"):
        text = printed(capsys, f"collectives --jobs 1 --by {by} --limit 3", tmp_path)
        same(partial(profiling_lab.collectives, tmp_path, by=by, limit=3), text)
    assert "9" in text


def options_of(command: str) -> set[str]:
    parser = argparse.ArgumentParser(add_help=False)
    import_module(f"profiling_lab.cli.{module_of(command)}").add_arguments(parser)
    return {action.dest for action in parser._actions} - {"format", "trace", "traces"}


def parameters_of(*calls: Callable[..., object]) -> set[str]:
    return {name for call in calls for name in inspect.signature(call).parameters} - {
        "self",
        "path",
        "traces",
    }


# Options that say what a command prints or writes besides its table, and with which exit code it ends.
OF_THE_COMMAND = {
    "lines": {"tree", "host"},
    "apis": {"launch"},
    "check": {"fail_on"},
    "roofline": {"plot"},
    "rules": {"list"},
    "diff": {"save", "overwrite", "annotate", "lenient", "memory", "journal", "note"},
}


@pytest.mark.parametrize(
    ("command", "calls"),
    [
        *((name, (getattr(TraceTables, name),)) for name in (
            "info", "kernels", "copies", "syncs", "ranges", "streams", "steps", "gaps", "overlap", "check",
            "roofline", "rules", "counters", "energy",
        )),
        ("lines", (TraceTables.lines, TraceTables.call_tree, TraceTables.host_lines)),
        ("apis", (TraceTables.apis, TraceTables.launches)),
        ("diff", (profiling_lab.diff, profiling_lab.diff_memory)),
        ("ranks", (profiling_lab.ranks,)),
        ("collectives", (profiling_lab.collectives,)),
        ("critical-path", (TraceTables.critical_path,)),
    ],
)  # fmt: skip
def test_a_keyword_is_an_option(command: str, calls: tuple[Callable[..., object], ...]) -> None:
    """An option that a command gains is one that a call gains."""
    options = options_of(command) - OF_THE_COMMAND.get(command, set())
    of_open = set() if command in ("ranks", "collectives", "rules") else parameters_of(profiling_lab.open)
    assert options - of_open == parameters_of(*calls) - of_open


def test_a_damaged_file_is_the_packages_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing, cut = tmp_path / "missing.sqlite", tmp_path / "cut.sqlite"
    shutil.copy(TRACES["ours"], cut)
    cut.write_bytes(cut.read_bytes()[:3000])
    for path in (missing, cut, tmp_path):
        text = printed(capsys, "lines", path)
        same(lambda path=path: profiling_lab.open(path).lines(limit=30), text)  # type: ignore[misc]
        assert text.endswith("(4)")
