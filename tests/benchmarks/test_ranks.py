# SPDX-License-Identifier: Apache-2.0
"""The golden cases of `ranks`: programs and truth agree, run without a GPU, and the score counts right."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.golden_cases import FOLDER, load
from conftest import REPO
from made_traces import jobs
from made_traces.cluster import Cluster, Conditions
from package_root import PACKAGE_ROOT

from profiling_lab.analysis.ranks.blame import SLOW_GPU, SLOW_HOST, UNEQUAL_WORK

score = load("score")
CASES = score.cases()
PROGRAMS = {path.stem: path for path in (FOLDER / "programs").glob("*.py")}
KINDS = {"transfer", "waiting", "balanced", "unknown"}


def run(script: Path | str, *arguments: str, timeout_s: int = 300) -> subprocess.CompletedProcess[str]:
    command = [str(script)] if isinstance(script, Path) else ["-c", script]
    path = os.pathsep.join([str(PACKAGE_ROOT), str(REPO / "benchmarks")])
    return subprocess.run(
        [sys.executable, *command, *arguments],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        cwd="/",  # not the source tree, whose package may not be built
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def test_every_program_has_its_truth() -> None:
    assert {case.path.stem for case in CASES.values()} == set(PROGRAMS)
    delays = [delay for case in CASES.values() for delay in case.delays]
    assert len(delays) >= 12 and sum(name.startswith("healthy_") for name in CASES) >= 5
    assert {cause for delay in delays for cause in delay.causes} <= {SLOW_GPU, SLOW_HOST, UNEQUAL_WORK}
    assert {kind for case in CASES.values() for kind in case.kinds} <= KINDS


@pytest.mark.parametrize("name", CASES)
def test_what_is_planted_is_marked(name: str) -> None:
    case = CASES[name]
    assert bool(case.delays) != bool(case.kinds)
    marks = set(re.findall(r"# planted: (\w+)$", case.path.read_text(), re.MULTILINE))
    if case.delays:
        assert marks == {delay.name for delay in case.delays if delay.line}
        assert all(case.lines(delay.name) for delay in case.delays if delay.line)
    compile(case.path.read_text(), str(case.path), "exec")


def test_programs_run_without_a_gpu(tmp_path: Path) -> None:
    """On two gloo processes, with tiny sizes: timed in each way, and recorded."""
    pytest.importorskip("torch")
    names = ("ddp_backward", "pipeline_stage", "experts", "graphed_step", "ddp_loader")
    done = run(
        FOLDER / "run.py", "--out", str(tmp_path), "--device", "cpu", "--parts", "times,recordings",
        "--only", ",".join(names), "--limit", "240",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "log.txt").read_text()[-3000:]
    times = score.step_times(tmp_path / "times.jsonl")
    assert {name: set(times[name]) for name in names} == {name: set(CASES[name].ways) for name in names}
    assert times["ddp_loader"]["as it is"] - times["ddp_loader"]["without delay"] > 10, (
        "two workers sleep 48 ms"
    )
    for name in names:
        assert len(list((tmp_path / "recorded" / name).glob("run.rank*.sqlite"))) == 2


# Pieces of work that fail, die, hang, or wait for a rank that does.
TROUBLE = """
import json, os, sys, time
from pathlib import Path
import forked_jobs
def tell(*jobs, **options):
    for outcome in forked_jobs.run(*jobs, Path(sys.argv[1]), **options):
        print(json.dumps([outcome.name, outcome.results, outcome.failure]))
def work(piece):
    rank = int(os.environ["RANK"])
    if piece == "works" and rank == 0: time.sleep(0.5)  # the other rank fails meanwhile
    if piece == "fails" and rank == 1: raise ValueError("on purpose")
    if piece == "dies" and rank == 0: os.kill(os.getpid(), 11)
    if piece == "hangs" or (piece != "works" and not piece.startswith("also")): time.sleep(600)
    print("did", piece)
    return [rank, os.environ["WORLD_SIZE"], os.environ.get("MORE")]
names = ["works", "fails", "also works", "dies", "hangs", "also this"]
tell(lambda: work, names, 2, environment={"MORE": "yes"}, piece_s=6)
def start(): raise OSError("no port")
tell(start, ["a", "b", "c"], 2)
tell(lambda: work, ["hangs", "works"], 1, until=time.monotonic() + 1)
"""


def test_jobs_that_fail_die_or_hang_are_told_and_the_rest_is_done(tmp_path: Path) -> None:
    done = run(TROUBLE, str(tmp_path / "log.txt"), timeout_s=100)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for name, _, failure in found[6:8]:  # the other rank may be too late to tell, too
        assert name in "ab" and re.fullmatch(r"(rank \d: OSError: no port(; )?){1,2}", failure), failure
    right = [[0, "2", "yes"], [1, "2", "yes"]]
    assert found == [
        ["works", right, ""],
        ["fails", [], "rank 1: ValueError: on purpose"],
        ["also works", right, ""],
        ["dies", [], "rank 0 died of signal 11"],
        ["hangs", [], "not done in 6 s"],
        ["also this", right, ""],
        *found[6:8],
        ["c", [], "2 jobs could not start"],
        ["hangs", [], "the time was over"],
        ["works", [], "the time was over"],
    ]
    log = (tmp_path / "log.txt").read_text()
    assert log.count("did works") == 2 and "ValueError: on purpose" in log


def blame(rank: int, cause: str, line: str, gain_ms: float) -> dict[str, Any]:
    facts = {"name": "", "doing": "kernel", "gain_ns": int(1e6 * gain_ms)}
    return {"rank": rank, "cause": cause, "line": line, **facts}


def judged(name: str, *blames: dict[str, Any], **times: float) -> list[Any]:
    first = blames[0] if blames else None
    summary = {
        "kind": "straggler" if first else times.pop("kind", "balanced"),
        "rank": first and first["rank"],
        "cost_ns": first["gain_ns"] if first else int(1e6 * times.pop("cost", 0)),
        "blame": first,
        "also": list(blames[1:]),
    }
    ways = {way.replace("_", " "): ms for way, ms in times.items()}
    return score.judge(CASES[name], summary, ways)  # type: ignore[no-any-return]


def test_the_score_counts_rank_line_kind_and_gain() -> None:
    (line,) = CASES["ddp_forward"].lines("delay")
    here, times = f"/app/ddp_forward.py:{line}", {"as_it_is": 30.0, "without_delay": 20.0}
    (row,) = judged("ddp_forward", blame(1, UNEQUAL_WORK, here, 9.0), **times)
    assert row.found and row.gain and row.counts and row.measured_ms == 10.0
    (row,) = judged("ddp_forward", blame(1, UNEQUAL_WORK, here, 6.0), **times)
    assert row.found and row.gain is False, "more than 1.5 times too little; an upper limit does not help"
    (row,) = judged("ddp_forward", blame(1, SLOW_HOST, here, 9.0), **times)
    assert row.rank and row.line and not row.cause
    (row,) = judged("ddp_forward", blame(1, UNEQUAL_WORK, f"/app/ddp_forward.py:{line + 1}", 9.0), **times)
    assert row.rank and not row.line
    between = f"between /app/ddp_forward.py:{line - 1} and /app/ddp_forward.py:{line + 1}"
    (row,) = judged("ddp_forward", blame(1, UNEQUAL_WORK, between, 9.0), **times)
    assert row.line
    (row,) = judged("ddp_forward", blame(0, UNEQUAL_WORK, here, 9.0), **times)
    assert (row.rank, row.line, row.gain) == (False, False, False)
    (row,) = judged("ddp_forward", blame(0, SLOW_HOST, "", 9.0), blame(1, UNEQUAL_WORK, here, 8.0), **times)
    assert not row.rank, "the other rank came first"
    (row,) = judged("ddp_forward", blame(1, UNEQUAL_WORK, here, 0.9), as_it_is=20.9, without_delay=20.0)
    assert not row.counts, "a tenth of the step at least"
    (row,) = judged("ddp_sequences", blame(1, UNEQUAL_WORK, "", 9.0), **times)
    assert row.found, "no line is at fault"
    assert not judged("ddp_sequences", blame(1, UNEQUAL_WORK, here, 9.0), **times)[0].line
    (row,) = score.judge(CASES["ddp_forward"], None, {})
    assert (row.rank, row.said) == (False, "gave up")


def test_of_two_delays_the_larger_comes_first() -> None:
    case = CASES["fsdp2_products_and_host"]
    lines = {name: f"/app/{case.name}.py:{case.lines(name)[0]}" for name in ("delay", "host")}
    products = blame(1, UNEQUAL_WORK, lines["delay"], 20.0)
    host = blame(0, SLOW_HOST, lines["host"], 10.0)
    times = {"as_it_is": 60.0, "without_delay": 40.0, "without_host": 50.0}
    first, second = judged(case.name, products, host, **times)
    assert first.found and second.found and first.gain and second.gain
    first, second = judged(case.name, host, products, **times)
    assert not first.rank and second.rank
    about = times | {"without_host": 41.0}
    assert all(row.rank for row in judged(case.name, host, products, **about)), "they cost about the same"
    first, second = judged(case.name, products, **times)
    assert first.found and (second.rank, second.gain) == (False, False)


def test_where_no_rank_is_delayed() -> None:
    (row,) = judged("healthy_ddp")
    assert row.verdict and row.gain is None
    (row,) = judged("healthy_ddp", blame(0, SLOW_HOST, "", 1.0))
    assert row.verdict is False
    times = {"as_it_is": 30.0, "without_delay": 20.0}
    (row,) = judged("ddp_slow_link", kind="transfer", cost=8.0, **times)
    assert row.verdict and row.gain
    (row,) = judged("ddp_slow_link", kind="balanced", cost=8.0, **times)
    assert row.verdict is False and row.gain is None


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A folder as run.py fills it, with jobs of a made cluster."""
    healthy = Cluster(2, jobs.data_parallel, Conditions(jitter=0.02)).run(10)
    delayed = Cluster(
        2, jobs.data_parallel, Conditions(extra_kernels={(1, jobs.ATTENTION): (2, 600_000)})
    ).run(10)
    for name, cluster in (("healthy_ddp", healthy), ("ddp_forward", delayed)):
        folder = tmp_path / "recorded" / name
        folder.mkdir(parents=True)
        cluster.write(folder)
    facts = {
        "gpu": "none",
        "driver": None,
        "torch": None,
        "cudnn": None,
        "cuda": None,
        "git": "x",
        "date": "2026",
    }
    rows = [
        {"case": {"program": "ddp_forward", "ranks": 2}, "provider": way, "value": ms, **facts}
        for way, ms in (("as it is", delayed.step_ns / 1e6), ("without delay", healthy.step_ns / 1e6))
    ]
    (tmp_path / "times.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_recordings_are_scored_and_kept(filled: Path) -> None:
    done = run(FOLDER / "score.py", str(filled), "--format", "json", "-o", str(filled / "results.jsonl"))
    assert done.returncode == 0, done.stderr
    found = {row["case"]: row for row in json.loads(done.stdout)}
    assert found["healthy_ddp"]["verdict"] is True
    delayed = found["ddp_forward"]
    assert (delayed["rank"], delayed["cause"], delayed["gain"]) == (True, True, True), delayed
    assert delayed["line"] is False and "model.py:21" in delayed["said"], "it is another program"
    lines = [json.loads(line) for line in (filled / "results.jsonl").read_text().splitlines()]
    assert {line["metric"] for line in lines} >= {"rank", "line", "cause", "gain", "verdict", "predicted"}
    assert {line["gpu"] for line in lines} == {"none"}


def test_a_reduced_job_says_the_same(filled: Path) -> None:
    target = filled / "small"
    done = run(FOLDER / "reduce.py", str(filled), "--to", str(target))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "straggler rank 1 unequal work model.py:21" in done.stdout
    assert sorted(path.name for path in target.iterdir()) == [
        "README.md", "ddp_forward.tar.xz", "healthy_ddp.tar.xz", "times.json",
    ]  # fmt: skip
    assert set(json.loads((target / "times.json").read_text())) == {"ddp_forward"}
    done = run(FOLDER / "reduce.py", str(filled), "--to", str(target), "--bytes", "100")
    assert done.returncode == 1 and "NOT KEPT: too large" in done.stdout


def test_a_folder_without_recordings_is_one_sentence(tmp_path: Path) -> None:
    done = run(FOLDER / "score.py", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.endswith(
        f"{tmp_path} has no recording of a case: expected recorded/NAME from run.py\n"
    )
