# SPDX-License-Identifier: Apache-2.0
"""A recorded program that makes other processes, and a job of several that are each recorded."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from package_root import PACKAGE_ROOT

from profiling_lab.analysis.lines import lines
from profiling_lab.cli import main
from profiling_lab.trace import Trace

HERE = Path(__file__).resolve().parent


def record(
    library: Path, folder: Path, script: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script under `profiling-lab record`; `fake` is the GPU in it."""
    (folder / "script.py").write_text(f"import os, sys\nfrom fake_driver import Fake\n{script}")
    path = os.pathsep.join([str(PACKAGE_ROOT), str(HERE)])
    kept = {name: value for name, value in os.environ.items() if name != "NVTX_INJECTION64_PATH"}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "profiling_lab", "record", *arguments, "script.py"],
        cwd=folder,
        env={**kept, "PYTHONPATH": path, "PROFILING_LAB_CUPTI": str(library), **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


def kernels(path: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        query = "SELECT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName ORDER BY start"
        return [name for (name,) in file.execute(query)]


POOLS = {
    "fork": "multiprocessing.get_context('fork').Pool(2)",
    "spawn": "multiprocessing.get_context('spawn').Pool(2)",
    "forkserver": "multiprocessing.get_context('forkserver').Pool(2)",
    "executor": "concurrent.futures.ProcessPoolExecutor(2)",
}


@pytest.mark.parametrize("pool", [*POOLS])
def test_pools_of_processes(fake_library: Path, tmp_path: Path, pool: str) -> None:
    """Workers find their function in the script, work during the recording and end without a message."""
    done = record(
        fake_library,
        tmp_path,
        f"""
import concurrent.futures, multiprocessing
def square(n): return n * n, os.getpid()
if __name__ == "__main__":
    fake = Fake(); fake.kernel("before")
    with {POOLS[pool]} as workers:
        found = list(workers.map(square, range(20)))
    fake.kernel("after")
    assert [n for n, _ in found] == [n * n for n in range(20)]
    assert os.getpid() not in {{pid for _, pid in found}}
    print("whole")
""",
        "-o",
        "out.sqlite",
        "--sample-python",
    )
    assert done.returncode == 0 and done.stdout == "whole\n", done.stderr
    assert all(line.startswith("profiling-lab:") for line in done.stderr.splitlines()), done.stderr
    assert kernels(tmp_path / "out.sqlite") == ["before", "after"]
    assert sorted(path.name for path in tmp_path.glob("*.sqlite*")) == ["out.sqlite"]


CHILDREN = {
    "fork and exit": "pid = os.fork()\nif pid == 0: fake.kernel('child'); sys.exit(3)",
    "fork and run on": "pid = os.fork()\nif pid == 0:\n    fake.kernel('child'); end = 3",
    "fork and exec": "pid = os.fork()\nif pid == 0: os.execv(sys.executable, ['python', '-c', 'exit(3)'])",
    "vfork": "pid = os.posix_spawn(sys.executable, [sys.executable, '-c', 'exit(3)'], os.environ)",
}


@pytest.mark.parametrize("child", [*CHILDREN])
def test_children(fake_library: Path, tmp_path: Path, child: str) -> None:
    done = record(
        fake_library,
        tmp_path,
        f"""
fake = Fake(); fake.kernel("before")
end = 0
{CHILDREN[child]}
if pid:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    fake.kernel("after")
sys.exit(end)
""",
        "-o",
        "out.sqlite",
        "--sample-python",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("recorded ") == 1, done.stderr  # of the parent alone
    assert kernels(tmp_path / "out.sqlite") == ["before", "after"]


def test_a_recorded_program_that_records_another(fake_library: Path, tmp_path: Path) -> None:
    """The other one has its own process, and everything that it inherits points to this recording."""
    (tmp_path / "inner.py").write_text("from fake_driver import Fake\nFake().kernel('inner')\n")
    done = record(
        fake_library,
        tmp_path,
        """
import subprocess
fake = Fake(); fake.kernel("outer")
command = [sys.executable, "-m", "profiling_lab", "record", "-o", "inner.sqlite", "inner.py"]
subprocess.run(command, check=True)
""",
        "-o",
        "out.sqlite",
    )
    assert done.returncode == 0, done.stderr
    assert kernels(tmp_path / "out.sqlite") == ["outer"] and kernels(tmp_path / "inner.sqlite") == ["inner"]
    assert "nvtx" not in done.stderr


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_that_record_themselves(
    fake_library: Path, tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker leaves without Python's atexit, and its file is whole nevertheless."""
    (tmp_path / "workers.py").write_text(
        f"""
import multiprocessing, os, sys
import profiling_lab.recording
from fake_driver import Fake
def load(number):
    recorder = profiling_lab.recording.Recorder(f"worker{{number}}.sqlite"); recorder.start()
    Fake().kernel(f"of_worker_{{number}}")
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    workers = [context.Process(target=load, args=(n,)) for n in range(2)]
    [w.start() for w in workers]
    with profiling_lab.recording.record("main.sqlite"): Fake().kernel("of_main")
    [w.join() for w in workers]
    assert [w.exitcode for w in workers] == [0, 0]
"""
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "workers.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(PACKAGE_ROOT), str(HERE)]),
            "PROFILING_LAB_CUPTI": str(fake_library),
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    files = [str(tmp_path / name) for name in ("main.sqlite", "worker0.sqlite", "worker1.sqlite")]
    assert not list(tmp_path.glob("*.spool"))
    assert main(["merge", *files, "-o", str(tmp_path / "job.sqlite")]) == 0
    assert "merged 3 processes with 3 kernels" in capsys.readouterr().err
    assert sorted(kernels(tmp_path / "job.sqlite")) == ["of_main", "of_worker_0", "of_worker_1"]


def test_the_ranks_of_a_job(fake_library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As torchrun starts them: a file for each, and one of all."""
    script = """
fake = Fake()
def forward(): fake.kernel("forward")
def wait_for_others(): fake.kernel("all_reduce")
for _ in range(3 + int(os.environ["RANK"])): forward()
wait_for_others()
"""
    for rank in range(3):
        done = record(
            fake_library,
            tmp_path,
            script,
            "-o",
            "run.rank{rank}.sqlite",
            RANK=str(rank),
            WORLD_SIZE="3",
            LOCAL_RANK=str(rank),
        )
        assert done.returncode == 0, done.stderr
    files = [str(tmp_path / f"run.rank{rank}.sqlite") for rank in range(3)]
    job = tmp_path / "job.sqlite"
    assert main(["merge", *reversed(files), "-o", str(job)]) == 0
    assert "all files come from one machine" in capsys.readouterr().err
    with Trace.open(job) as trace:
        found = {row.function: row.kernels for row in lines(trace, own=(str(tmp_path),)).rows}
    assert found == {"forward": 3 + 4 + 5, "wait_for_others": 3}
    assert main(["info", str(job)]) == 0
    text = capsys.readouterr().out
    assert all(f"rank {rank} is pid" in text for rank in range(3)) and "by process id" not in text
