# SPDX-License-Identifier: Apache-2.0
"""E22: calls are read from nsys and strace alike, and a repair is judged by the kernel's own count."""

from __future__ import annotations

import importlib
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.cli import build_parser, main
from profiling_lab.exercises import find, workspace
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.e22_osrt_tracing import calls, repair
from profiling_lab.exercises.e22_osrt_tracing.grade import CHECKS
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck

EXERCISE = find("osrt-tracing")
STARTER = EXERCISE.folder / "convert.py"
SOLUTION = (EXERCISE.folder / workspace.SOLUTIONS / "convert.py").read_text()
LINE = next(i for i, text in enumerate(STARTER.read_text().splitlines(), 1) if "os.read(" in text)
TOOLS = Path(__file__).resolve().parents[2] / "tools"
READS, SAVES = 8000, 160

needs_count = pytest.mark.skipif(not Path("/proc/self/io").is_file(), reason="no /proc/PID/io here")


def rows(reads: int = READS, saves: int = SAVES, read_us: int = 10) -> list[tuple[str, int, int]]:
    """(function, start in us, duration in us): reads take 80 ms, saves 160, writes 10 ms together."""
    found = [("read", read_us)] * reads + [("fsync", 1000)] * saves + [("write", 100)] * 100
    return [(name, 20 * number, took_us) for number, (name, took_us) in enumerate(found)]


def strace(path: Path, found: list[tuple[str, int, int]]) -> Path:
    lines = ['7 1000.000000 execve("/usr/bin/python3", ["python3"], 0x7ffd /* 2 vars */) = 0 <9.000000>']
    for name, start_us, took_us in found:
        arguments = '3, "\\1\\0 <0.5>", 2'
        lines.append(f"7 {1000 + start_us / 1e6:.6f} {name}({arguments}) = 2 <{took_us / 1e6:.6f}>")
    lines.append("7 1009.000000 +++ exited with 0 +++")
    path.write_text("\n".join(lines) + "\n")
    return path


def nsys(path: Path, found: list[tuple[str, int, int]]) -> Path:
    builder = TraceBuilder(form="nsys")
    for name, start_us, took_us in found:
        start_ns = 1000 * start_us
        builder.row(
            "OSRT_API",
            start=start_ns,
            end=start_ns + 1000 * took_us,
            globalTid=builder.tid(1),
            nameId=builder.string(name),
        )
    return builder.write(path)


def answers(**changes: object) -> Answers:
    right = {
        "trace": "run.trace",
        "finding.often": "read",
        "finding.often_calls": READS,
        "finding.per_record": 4.0,
        "finding.file": "convert.py",
        "finding.line": LINE,
        "finding.longest": "fsync",
        "finding.longest_share": 64.0,
        "fix.cause": "I saw it",
        "fix.change": "I changed it",
    }
    return Answers({**right, **{f"finding.{key}": value for key, value in changes.items()}})


def findings(folder: Path, **changes: object) -> dict[str, GradedCheck]:
    return {check.name: check for check in EXERCISE.findings(folder, answers(**changes))}


def failed(checks: dict[str, GradedCheck]) -> set[str]:
    return {name for name, check in checks.items() if check.status is CheckStatus.FAILED}


@pytest.mark.parametrize("write", [strace, nsys])
def test_right_answers_pass_for_both_tools(write: object, tmp_path: Path) -> None:
    assert callable(write)
    write(tmp_path / "run.trace", rows())
    checks = findings(tmp_path)
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks


def test_signals_between_threads_do_not_hide_the_reads(tmp_path: Path) -> None:
    """Python sends three around each read, for its own lock; nsys lists them, strace does not."""
    signals = [("pthread_cond_signal", 20 * number, 1) for number in range(3 * READS)]
    nsys(tmp_path / "run.trace", [*rows(), *signals])
    assert not failed(findings(tmp_path))
    assert failed(findings(tmp_path, often="pthread_cond_signal")) == {"often"}


def test_a_recording_of_nsys_can_be_reduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In nsys' own schema a call must have a number of a call chain, and 0 is none."""
    monkeypatch.syspath_prepend(TOOLS)
    script = importlib.import_module("record_timelines")
    full = nsys(tmp_path / "full.trace", [*rows(), ("pthread_cond_signal", 5, 1)])
    with sqlite3.connect(full) as file:
        names = [row[1] for row in file.execute("PRAGMA table_info(OSRT_API)")]
        schema = ", ".join(f"{name} {'INTEGER NOT NULL' if name == 'callchainId' else ''}" for name in names)
        file.execute("UPDATE OSRT_API SET callchainId = 7")
        file.execute("ALTER TABLE OSRT_API RENAME TO old")
        file.execute(f"CREATE TABLE OSRT_API ({schema})")
        file.execute("INSERT INTO OSRT_API SELECT * FROM old")
        file.execute("CREATE TABLE OSRT_CALLCHAINS (id INTEGER)")
    file.close()
    script._reduce(full, tmp_path / "small.trace")
    assert calls.read(tmp_path / "small.trace") == calls.read(full)
    with sqlite3.connect(tmp_path / "small.trace") as file:
        assert {name for (name,) in file.execute("SELECT name FROM sqlite_master")} <= {*script.KEPT}
        assert file.execute("SELECT DISTINCT callchainId FROM OSRT_API").fetchall() == [(0,)]
        assert "pthread_cond_signal" not in {value for _, value in file.execute("SELECT * FROM StringIds")}
    file.close()


@pytest.mark.parametrize(
    ("answer", "check"),
    [
        ({"often": "fsync"}, "often"),
        ({"often": "Read"}, "often"),
        ({"often_calls": SAVES}, "often_calls"),
        ({"often_calls": 8105}, "often_calls"),  # of the recording that comes with the exercise
        ({"per_record": 1.0}, "per_record"),
        ({"line": LINE + 1}, "line"),
        ({"file": "calls.py"}, "line"),
        ({"longest": "read"}, "longest"),
        ({"longest_share": 0.64}, "longest_share"),
        ({"longest_share": 85.9}, "longest_share"),
    ],
)
def test_wrong_answers_are_rejected(answer: dict[str, object], check: str, tmp_path: Path) -> None:
    strace(tmp_path / "run.trace", rows())
    assert failed(findings(tmp_path, **answer)) == {check}


def test_answers_of_another_recording_are_rejected(tmp_path: Path) -> None:
    """On a disk in memory saving is cheap, and reads take the most time."""
    strace(tmp_path / "run.trace", rows(read_us=100))
    assert failed(findings(tmp_path)) == {"longest", "longest_share"}
    assert not failed(findings(tmp_path, longest="read", longest_share=82.5))


@pytest.mark.parametrize("text", ["no recording", "", "SQLite format 3\0damaged", "\x1f\x8bdamaged"])
def test_an_unreadable_recording_is_said(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.trace").write_bytes(text.encode("latin1"))
    checks = findings(tmp_path)
    assert failed(checks) == {"recording"} and "exercise profile" in checks["recording"].message
    assert {checks[name].status for name in CHECKS} == {CheckStatus.NOT_CHECKED}


def test_a_recording_of_the_repaired_program_is_refused(tmp_path: Path) -> None:
    strace(tmp_path / "run.trace", rows(reads=100, saves=4))
    checks = findings(tmp_path)
    assert failed(checks) == {"recording"} and "does not show the problem" in checks["recording"].message


def test_nsys_without_calls_of_the_system_says_what_to_record(tmp_path: Path) -> None:
    TraceBuilder().launch("sgemm", 1000).write(tmp_path / "run.trace")
    assert "--trace=osrt" in findings(tmp_path)["recording"].message


def test_calls_that_strace_splits_count_once(tmp_path: Path) -> None:
    (tmp_path / "run.trace").write_text(
        "7 1000.000100 read(3,  <unfinished ...>\n"
        "8 1000.000150 futex(0x7f, FUTEX_WAKE, 1) = 1 <0.000002>\n"
        '7 1000.000400 <... read resumed>"ab", 2) = 2 <0.000300>\n'
        "1000.000500 getpid() = 7 <0.000001>\n"
    )
    found = [(name, thread, took_ns) for name, thread, _, took_ns in calls.read(tmp_path / "run.trace")]
    assert found == [("futex", 8, 2_000), ("read", 7, 300_000), ("getpid", 0, 1_000)]


# Repairs.

SMALL_READS = SOLUTION.replace(
    "    at = 0\n",
    "    for number in range(2000):\n        os.stat('/'), os.read(os.open('/dev/zero', 0), 1)\n    at = 0\n",
)
ELSEWHERE = """

import subprocess, sys
_convert = convert


def convert(source, folder):
    return eval(subprocess.run(
        [sys.executable, "-c", f"import convert; print(convert._convert({str(source)!r}, {str(folder)!r}))"],
        capture_output=True, text=True, cwd=os.path.dirname(__file__)).stdout)
"""
REMEMBERED = """

_convert, _known = convert, Path(__file__).parent / "known"


def convert(source, folder):
    if not _known.exists():
        _convert(source, folder)
        _known.mkdir()
        for path in Path(folder).glob("*.bin"):
            (_known / path.name).write_bytes(path.read_bytes())
    for path in _known.glob("*.bin"):
        (Path(folder) / path.name).write_bytes(path.read_bytes())
    return [250] * 4
"""


def judged(text: str, folder: Path) -> dict[str, GradedCheck]:
    (folder / "convert.py").write_text(text)
    return {check.name: check for check in EXERCISE.repair(folder, answers())}


@needs_count
def test_solution_passes(tmp_path: Path) -> None:
    checks = judged(SOLUTION, tmp_path)
    assert checks["result"].status is checks["work"].status is CheckStatus.PASSED, checks
    assert checks["after"].status is CheckStatus.NOT_CHECKED


@needs_count
def test_both_programs_write_the_same(tmp_path: Path) -> None:
    from profiling_lab.exercises.program_repair import load

    source = tmp_path / "measurement.bin"
    load(STARTER, "starter_program").write_records(source, 300, seed=5)
    (tmp_path / "solved.py").write_text(SOLUTION)
    old, new = (repair.run(path, source) for path in (STARTER, tmp_path / "solved.py"))
    assert (old.found, old.shards) == (new.found, new.shards) and sum(old.found) == 300
    assert old.calls is not None and new.calls is not None and old.calls > 4 * 300 > 40 > new.calls


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        pytest.param('b"".join(values)', 'b""', "other bytes", id="deleted work"),
        pytest.param("!= zlib.crc32(data[at:end])", "is None", "wrong checksum", id="deleted checksum"),
        pytest.param("len(values) for", "250 for", "convert returns", id="hard-coded result"),
        pytest.param("shard{sensor}.bin", "part{sensor}.bin", "missing or new", id="another name"),
        pytest.param("def convert(", "def sort(", "convert", id="no convert"),
        pytest.param("import os\n", "import os\nos._exit(0)\n", "without a result", id="ends at once"),
    ],
)
def test_programs_that_do_something_else_are_rejected(old: str, new: str, hint: str, tmp_path: Path) -> None:
    assert old in SOLUTION
    checks = judged(SOLUTION.replace(old, new), tmp_path)
    assert failed(checks) == {"result"} and hint in checks["result"].message


def test_shards_remembered_from_another_measurement_are_rejected(tmp_path: Path) -> None:
    assert failed(judged(SOLUTION + REMEMBERED, tmp_path)) == {"result"}
    assert failed(judged(SOLUTION + REMEMBERED, tmp_path)) == {"result"}  # known by now


@needs_count
@pytest.mark.parametrize("text", [STARTER.read_text() + "\n", SMALL_READS])
def test_many_small_reads_are_no_repair(text: str, tmp_path: Path) -> None:
    assert text != SOLUTION
    checks = judged(text, tmp_path)
    assert failed(checks) == {"work"} and "the goal is at most 5 %" in checks["work"].message


@needs_count
def test_work_in_another_process_is_refused(tmp_path: Path) -> None:
    checks = judged(STARTER.read_text() + ELSEWHERE, tmp_path)
    assert failed(checks) == {"work"} and "another process" in checks["work"].message


def test_unchanged_or_missing_program_is_said(tmp_path: Path) -> None:
    assert "unchanged" in judged(STARTER.read_text(), tmp_path)["result"].message
    (tmp_path / "convert.py").unlink()
    assert "there is no convert.py" in EXERCISE.repair(tmp_path, answers())[0].message


@pytest.mark.parametrize(
    ("reads", "saves", "status", "hint"),
    [
        (30, 4, CheckStatus.PASSED, "4 of fsync"),
        (30, 0, CheckStatus.FAILED, "must be saved"),
        (30, 100, CheckStatus.FAILED, "every few records"),
        (8000, 4, CheckStatus.FAILED, "every few records"),
    ],
)
def test_the_recording_of_the_repair_shows_that_shards_are_saved(
    reads: int, saves: int, status: CheckStatus, hint: str, tmp_path: Path
) -> None:
    strace(tmp_path / "after.trace", rows(reads=reads, saves=saves))
    (tmp_path / "convert.py").write_text(STARTER.read_text())
    given = Answers({**answers().values, "fix.after": "after.trace"})
    found = {check.name: check for check in EXERCISE.repair(tmp_path, given)}["after"]
    assert found.status is status and hint in found.message


# What a learner reads.


def test_commands_of_the_readme_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = workspace.start(EXERCISE, tmp_path / "copy")
    monkeypatch.chdir(folder)
    text = (EXERCISE.folder / "README.md").read_text()
    for command in re.findall(r"^    profiling-lab (.+?)(?:\s+#.*)?$", text, re.M):
        build_parser().parse_args(command.split())
    looks = re.findall(r"^    python (calls\.py .+)$", text, re.M)
    assert looks and len(workspace.hints(EXERCISE)) == 3
    for look in looks:
        done = subprocess.run([sys.executable, *look.split()], capture_output=True, text=True)
        assert done.returncode == 0 and "fsync" in done.stdout, done.stderr
    assert f"    {' '.join(calls.commands('strace', 'python')[0])}\n" in text


def test_the_table_says_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXERCISE.folder / "calls.py", "absent.trace"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 1 and "No such file" in done.stderr and "Traceback" not in done.stderr


def test_profile_uses_the_tool_that_is_there_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A stand-in for strace: the real one may be missing, or not be allowed to trace."""
    folder = workspace.start(EXERCISE, tmp_path / "copy")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "strace").write_text("#!/bin/sh\necho '7 1.0 read(3, \"\", 2) = 2 <0.000010>' > run.trace\n")
    (tools / "strace").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/bin:/usr/bin:{Path(sys.executable).parent}")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if calls.shutil.which("nsys"):
        pytest.skip("nsys is here, and is used first")
    assert main(["exercise", "profile", str(folder)]) == 0
    said = capfd.readouterr().out
    assert "strace -f" in said and "python calls.py" in said
    assert 'trace = "run.trace"' in (folder / "answer.toml").read_text()


def test_recorded_starter_and_solution_differ() -> None:
    before, after, by_nsys = (
        {
            name: number
            for name, number, _ in calls.by_function(calls.read(EXERCISE.folder / "recorded" / file))
        }
        for file in ("starter_cpu.strace.gz", "solution_cpu.strace.gz", "starter_h200.sqlite")
    )
    assert min(before["read"], by_nsys["read"]) > 8000 and after["read"] < 1000
    assert before["fsync"] == by_nsys["fsync"] == 404 and after["fsync"] == 4


def test_the_recording_of_nsys_is_graded_from_its_own_figures(tmp_path: Path) -> None:
    recording = EXERCISE.folder / "recorded" / "starter_h200.sqlite"
    read_from_it = {"often_calls": 8168, "per_record": 4.08, "longest_share": 88.0}
    given = Answers({**answers(**read_from_it).values, "trace": str(recording)})
    checks = {check.name: check for check in EXERCISE.findings(tmp_path, given)}
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks
    of_strace = Answers({**answers(often_calls=8105).values, "trace": str(recording)})
    assert failed({c.name: c for c in EXERCISE.findings(tmp_path, of_strace)}) == {"longest_share"}
    hidden = Answers({**given.values, "finding.often": "pthread_cond_signal"})
    assert failed({c.name: c for c in EXERCISE.findings(tmp_path, hidden)}) == {"often"}
