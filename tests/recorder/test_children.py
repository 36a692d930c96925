# SPDX-License-Identifier: Apache-2.0
"""The processes below a recorded program or script record themselves, when they use the GPU."""

from __future__ import annotations

import os
import re
import socket
import time
import venv
from pathlib import Path

import pytest
from package_root import PACKAGE_ROOT
from recorder.jobs import HERE, PYTHON, TRAIN, Job, not_ours, prepare, said

from profiling_lab.cli import main
from profiling_lab.recording.children import Plan


@pytest.fixture
def job(tmp_path: Path, fake_library: Path) -> Job:
    return prepare(tmp_path, fake_library)


GLOO = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1); dist.all_reduce(total); assert total.item() == dist.get_world_size()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_torchrun(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    """Each rank its file; the launcher, which imports torch as well, none. What reads ranks reads them."""
    job.write("train.py", GLOO + TRAIN)
    done = job.record("-o", "run.sqlite", "torchrun", "--standalone", "--nproc-per-node", "2", "train.py")
    assert done.returncode == 0, done.stderr
    assert job.files() == {"run.rank0.sqlite": 2, "run.rank1.sqlite": 3}
    expected = (
        r"recorded 2 processes of torchrun: run\.rank0\.sqlite \(pid \d+, 2 kernels, [^)]*\), run\.rank1"
    )
    assert re.search(expected, done.stderr), done.stderr
    assert [job.meta(f"run.rank{n}.sqlite")["rank"] for n in (0, 1)] == ["0", "1"]
    assert job.meta("run.rank1.sqlite")["world_size"] == "2"
    files = [str(job.folder / f"run.rank{n}.sqlite") for n in (0, 1)]
    assert main(["merge", *files, "-o", str(job.folder / "job.sqlite")]) == 0
    assert "merged 2 processes with 5 kernels" in capsys.readouterr().err
    assert main(["ranks", *files]) in (0, 3)  # 3: there is no collective in them
    answer = capsys.readouterr()
    assert "could not" not in answer.out + answer.err


@pytest.mark.slow
def test_a_launcher_in_this_process(job: Job) -> None:
    """`-m` runs it here, with a file of its own, and its children have theirs."""
    arguments = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    done = job.record("-o", "run.sqlite", *arguments)
    assert done.returncode == 0, done.stderr
    assert job.files() == {"run.sqlite": 0, "run.rank0.sqlite": 2, "run.rank1.sqlite": 3}
    assert "recorded 2 processes more: run.rank0.sqlite" in said(done)


@pytest.mark.slow
def test_every_rank_records_itself_and_no_name_ends_the_job(job: Job) -> None:
    arguments = ("-m", "profiling_lab", "record", "-o", "run.sqlite", "train.py")
    for _ in range(2):
        done = job.run("torchrun", "--standalone", "--nproc-per-node", "2", *arguments)
        assert done.returncode == 0, done.stderr
    assert job.files() == {
        "run.rank0.sqlite": 2,
        "run.rank1.sqlite": 3,
        "run.rank0-2.sqlite": 2,
        "run.rank1-2.sqlite": 3,
    }
    assert "run.rank1.sqlite exists already, so rank 1 records into run.rank1-2.sqlite" in done.stderr


@pytest.mark.slow
def test_a_failing_rank_ends_the_job_as_alone_and_the_other_is_recovered(job: Job) -> None:
    """torchrun ends rank 0 with SIGTERM, which leaves it no time to write."""
    job.write(
        "train.py",
        TRAIN
        + """
from pathlib import Path
from profiling_lab import _recorder
import time
import venv
if os.environ["RANK"] == "1":
    while not Path("ready").exists(): time.sleep(0.01)
    sys.exit(5)
while _recorder.status()["kernels"] != "2": time.sleep(0.01)
Path("ready").touch()
while True: time.sleep(0.01)
""",
    )
    command = ("torchrun", "--standalone", "--nproc-per-node", "2", "train.py")
    done = job.record("-o", "run.sqlite", *command)
    assert done.returncode == 1, done.stderr
    assert job.files() == {"run.rank0.sqlite": 2, "run.rank1.sqlite": 3}, done.stderr
    assert re.search(r"run\.rank0\.sqlite \(pid \d+, 2 kernels, [^,]*, killed; recovered\)", said(done))


def test_a_process_without_gpu_work_costs_nothing(job: Job) -> None:
    """It imports nothing of the recorder, and its surroundings are as they were."""
    code = """
import sys
import venv
print([m for m in sys.modules if m.startswith("profiling_lab.") or m in ("json", "numpy", "dataclasses")])
print(sys.path, "sitecustomize" in sys.modules, sys.flags)
"""
    job.write("look.py", code)
    alone, done = job.run("python", "look.py"), job.record("python", "look.py")
    assert alone.stdout.splitlines()[0] == "[]"
    assert done.stdout.splitlines()[0] == "['profiling_lab._child_start']"
    assert done.stdout.splitlines()[1] == alone.stdout.splitlines()[1]
    assert job.files() == {}


def test_a_library_without_work_leaves_no_file(job: Job) -> None:
    job.write("train.py", "import cupy\n")
    done = job.record("python", "train.py")
    assert "recorded nothing" in said(done) and job.files() == {}


def test_the_environments_own_sitecustomize_runs(job: Job) -> None:
    job.write("own/sitecustomize.py", "import builtins; builtins.FROM_SITE = __file__\n")
    job.write("broken/sitecustomize.py", "raise RuntimeError('theirs')\n")
    job.write("look.py", "import sitecustomize; print(FROM_SITE, sitecustomize.__file__)\n")
    for folder in ("own", "broken"):
        path = f"{job.folder / folder}{os.pathsep}{job.environ()['PYTHONPATH']}"
        alone = job.run("python", "look.py", PYTHONPATH=path)
        done = job.record("python", "look.py", PYTHONPATH=path)
        assert done.stdout == alone.stdout
        assert not_ours(done).splitlines()[:1] == alone.stderr.splitlines()[:1]


def test_an_environment_without_profiling_lab(job: Job) -> None:
    """Its Python finds the plan and cannot follow it: the program must not notice."""
    job.write(
        "start.py",
        f"import sys; sys.path.insert(0, {str(PACKAGE_ROOT)!r})\n"
        "from profiling_lab.cli import main\nsys.exit(main())\n",
    )
    job.write(
        "train.py", "import cupy, sys\ncupy.Fake().kernel('k')\nprint(sys.modules.get('profiling_lab'))\n"
    )
    path = os.pathsep.join(map(str, [HERE, job.folder / "stub"]))
    venv.create(job.folder / "venv", symlinks=True)
    bare = str(job.folder / "venv" / "bin" / "python")
    for flags in ([], ["-S"], ["-E"], ["-I"]):
        command = [bare, *flags, "-c", "print(1)"] if flags else [bare, "train.py"]
        done = job.run(PYTHON, "start.py", "record", *command, PYTHONPATH=path)
        assert done.returncode == 0 and done.stdout == ("1\n" if flags else "None\n"), done.stderr
        assert not_ours(done) == "" and job.files() == {}


@pytest.mark.parametrize("broken", ["not json", "[]", '{"unknown": 1}', '{"folder": 3}'])
def test_a_plan_of_another_version_is_ignored(job: Job, broken: str) -> None:
    site = PACKAGE_ROOT / "profiling_lab" / "recording" / "inherit"
    path = f"{site}{os.pathsep}{job.environ()['PYTHONPATH']}"
    done = job.run(PYTHON, "train.py", PYTHONPATH=path, PROFILING_LAB_RECORD=broken)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Traceback" not in done.stderr and job.files() == {}


def test_a_plan_outlives_its_recording_on_other_machines_alone(job: Job) -> None:
    """What a daemon starts after the recording is not ours; a job's other machines cannot see the reports."""
    site = PACKAGE_ROOT / "profiling_lab" / "recording" / "inherit"
    path = f"{site}{os.pathsep}{job.environ()['PYTHONPATH']}"
    for host, files in ((socket.gethostname(), {}), ("another", {"run.rank1.sqlite": 3})):
        plan = Plan(folder=str(job.folder), reports=str(job.folder / "gone"), output="run.sqlite", host=host)
        more = {"PYTHONPATH": path, "PROFILING_LAB_RECORD": plan.to_json(), "RANK": "1"}
        done = job.run(PYTHON, "train.py", **more)
        assert done.returncode == 0 and job.files() == files, done.stderr
        assert ("recorded " in done.stderr) == bool(files)


def test_no_room_for_reports_ends_nothing(job: Job) -> None:
    code = """
import errno, sys, tempfile
def full(**_): raise OSError(errno.ENOSPC, "No space left on device")
tempfile.mkdtemp = full
from profiling_lab.cli import main
sys.exit(main(["record", *sys.argv[1:]]))
"""
    job.write("start.py", code)
    for arguments in (["train.py"], ["sh", "-c", "exit 0"]):
        done = job.run(PYTHON, "start.py", *arguments)
        assert done.returncode == 0 and "No space left on device" in said(done), done.stderr
    assert job.files() == {"train.sqlite": 2}


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_that_a_script_starts(job: Job, method: str) -> None:
    job.write(
        "train.py",
        f"""
import multiprocessing, os
def work(number):
    import cupy
    cupy.Fake().kernel("of a worker")
    return number
if __name__ == "__main__":
    import cupy
    cupy.Fake().kernel("of main"); cupy.Fake().kernel("of main")
    workers = [multiprocessing.get_context({method!r}).Process(target=work, args=(n,)) for n in range(2)]
    [w.start() for w in workers]; [w.join() for w in workers]
    assert [w.exitcode for w in workers] == [0, 0]
""",
    )
    done = job.record("train.py")
    assert done.returncode == 0, done.stderr
    assert job.files() == {"train.sqlite": 2, "train-2.sqlite": 1, "train-3.sqlite": 1}, done.stderr
    assert "recorded 2 processes more: train-2.sqlite (" in said(done)
    for path in job.folder.glob("*.sqlite"):
        path.unlink()
    done = job.record("--no-children", "train.py")
    assert done.returncode == 0 and job.files() == {"train.sqlite": 2}, done.stderr
    done = job.record("--overwrite", "-o", "train.sqlite", "train.py")
    assert done.returncode == 0 and job.files() == {
        "train.sqlite": 2,
        "train-2.sqlite": 1,
        "train-3.sqlite": 1,
    }


def test_a_fork_that_uses_the_gpu_first(job: Job) -> None:
    job.write(
        "train.py", f"import os\npid = os.fork()\nif not pid:\n  exec({TRAIN!r})\nelse: os.waitpid(pid, 0)\n"
    )
    done = job.record("-o", "run.sqlite", "python", "train.py")
    assert done.returncode == 0 and job.files() == {"run.sqlite": 2}, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_data_loader_write_nothing(job: Job, start: str) -> None:
    job.write(
        "train.py",
        f"""
import torch
if __name__ == "__main__":
    import cupy
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    loader = torch.utils.data.DataLoader(data, num_workers=2, multiprocessing_context={start!r})
    for _ in loader: cupy.Fake().kernel("step")
""",
    )
    done = job.record("python", "train.py")
    assert done.returncode == 0 and job.files() == {"train.sqlite": 8}, done.stderr


def test_torch_begins_when_it_first_needs_the_gpu(job: Job) -> None:
    """Not at its import. Its queue for that moment is run here as torch runs it: there is no GPU."""
    job.write(
        "train.py",
        """
import os, torch
from profiling_lab import _recorder
from fake_driver import Fake
assert not _recorder.recording() and os.environ["NVTX_INJECTION64_PATH"] == _recorder.__file__
Fake().kernel("before")
torch.cuda._queued_calls[-1][0]()
assert _recorder.recording()
Fake().kernel("after"); Fake().kernel("after")
""",
    )
    done = job.record("python", "train.py")
    assert done.returncode == 0 and job.files() == {"train.sqlite": 2}, done.stderr


@pytest.mark.gpu
@pytest.mark.slow
def test_torch_on_a_gpu(job: Job) -> None:
    """Every kernel after the first use of the GPU has its record, and so have ranges pushed before it."""
    job.write(
        "train.py",
        """
import torch
torch.cuda.nvtx.range_push("before the GPU is used")
torch.manual_seed(0)
x = torch.ones(64, device="cuda")
for _ in range(9): x = x + 1
torch.cuda.synchronize()
torch.cuda.nvtx.range_pop()
""",
    )
    job.environment = {"PROFILING_LAB_CUPTI": ""}
    done = job.record("python", "train.py")
    assert done.returncode == 0, done.stderr
    assert job.files() == {"train.sqlite": 10}, done.stderr


def test_a_recording_within_a_recording_is_its_own(job: Job) -> None:
    """The inner one has its options, its files and its children; the outer one hears nothing of them."""
    inner = "python -m profiling_lab record -o inner.sqlite train.py"
    launched = "python -m profiling_lab record -o launched.sqlite python train.py"
    done = job.record("-o", "outer.sqlite", "sh", "-c", f"{inner}; {launched}; python train.py")
    assert done.returncode == 0, done.stderr
    assert job.files() == {"inner.sqlite": 2, "launched.sqlite": 2, "outer.sqlite": 2}
    assert "recorded 1 process of sh: outer.sqlite" in said(done)


def test_a_child_that_still_runs_is_named(job: Job) -> None:
    os.mkfifo(job.folder / "go")
    job.write("train.py", TRAIN + "open('started', 'w').close(); open('go').read()\n")
    shell = "python train.py >/dev/null 2>err & while ! test -e started; do sleep 0.01; done"
    done = job.record("-o", "run.sqlite", "sh", "-c", shell)
    assert re.search(r"pid \d+ still records into run\.sqlite", said(done)), done.stderr
    with open(job.folder / "go", "w"):  # it goes on, and reports what no other process would
        pass
    pid = int(re.findall(r"pid (\d+)", said(done))[0])
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.05)
    assert job.files() == {"run.sqlite": 2}
    assert (job.folder / "err").read_text().startswith(f"profiling-lab: pid {pid}: recorded ")


def test_a_recording_that_cannot_begin_is_reported_and_the_program_runs(job: Job) -> None:
    (job.folder / "out").mkdir()
    done = job.record("-o", "out/run.sqlite", "sh", "-c", "rmdir out; python train.py && echo ran")
    assert (done.returncode, done.stdout, not_ours(done)) == (0, "ran\n", "")
    assert re.search(r"pid \d+ was not recorded: the folder .*out does not exist", said(done))
