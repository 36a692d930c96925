# SPDX-License-Identifier: Apache-2.0
"""The names of unified_profiler: what they run, and that the script stays as it is."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from job_builder import Job
from package_root import PACKAGE_ROOT

from profiling_lab import api
from profiling_lab.errors import UsageError
from profiling_lab.utils import unified_profiler
from profiling_lab.utils.unified_profiler import (
    NVTXAnnotator,
    ProfilerWrapper,
    ProfilingConfig,
    UnifiedProfiler,
    get_profiler_context,
)


def run(*arguments: str, folder: Path, as_file: bool = False) -> subprocess.CompletedProcess[str]:
    how = [str(unified_profiler.__file__)] if as_file else ["-m", "profiling_lab.utils.unified_profiler"]
    paths = os.pathsep.join(filter(None, (str(PACKAGE_ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, *how, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("as_file", [False, True])
def test_the_script_keeps_its_arguments_and_exit_code(tmp_path: Path, as_file: bool) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(7)\n")
    done = run("-o", "out", "train.py", "--epochs", "10", "--mode", "x", folder=tmp_path, as_file=as_file)
    assert done.returncode == 7 and "['--epochs', '10', '--mode', 'x']" in done.stdout
    assert (tmp_path / "out" / "train.sqlite").is_file()
    assert "profiling-lab lines out/train.sqlite" in done.stderr


def test_wrong_arguments_are_one_sentence(tmp_path: Path) -> None:
    done = run("none.py", folder=tmp_path)
    assert done.returncode == 2 and "expected a Python script, found no file none.py" in done.stderr
    for wrong, message in (
        ({"mode": "fast"}, "mode must be one of auto, single, multi-gpu, multi-node, deepspeed, not 'fast'"),
        ({"gpus": 0}, "at least 1, not 0 and 1"),
        ({"mode": "single", "gpus": 2}, "mode single is for one GPU, not 2"),
        ({"mode": "multi-node", "nodes": 2}, "expects rendezvous HOST:PORT"),
        ({"mode": "multi-node", "nodes": 2, "node_rank": 2, "rendezvous": "a:1"}, "got a:1, 2 of 2"),
    ):
        with pytest.raises(UsageError, match=message):
            ProfilingConfig(**wrong)  # type: ignore[arg-type]


def test_deepspeed_starts_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(5)\n")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    done = run("--mode", "deepspeed", "--gpus", "2", "train.py", folder=tmp_path)
    assert done.returncode == 2 and "deepspeed, which is not on the PATH" in done.stderr
    launcher = tmp_path / "deepspeed"
    launcher.write_text(f'#!/bin/sh\necho "launched with $1 $2"\nshift 2\nexec "{sys.executable}" "$@"\n')
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    done = run("--mode", "deepspeed", "--gpus", "2", "train.py", "--zero", "3", folder=tmp_path)
    assert done.returncode == 5 and "launched with --num_gpus 2" in done.stdout
    assert "['--zero', '3']" in done.stdout


ENDLESS = """
import os, pathlib, time
pathlib.Path(f"pid.{os.environ.get('RANK', 0)}").write_text(str(os.getpid()))
time.sleep(600)
"""


@pytest.mark.parametrize(
    "arguments, processes, code",
    [
        (("--mode", "single"), 1, 130),
        (("--mode", "multi-gpu", "--gpus", "2"), 2, 1),
        (("--mode", "multi-gpu", "--gpus", "2"), 2, None),
    ],
    ids=["Ctrl-C", "Ctrl-C, two ranks", "SIGTERM, two ranks"],
)
def test_when_it_is_stopped_nothing_is_left_running(
    arguments: tuple[str, ...], processes: int, code: int | None, tmp_path: Path
) -> None:
    """Ctrl-C reaches all processes of a terminal, SIGTERM the first one alone. code: None with SIGTERM."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    process = subprocess.Popen(
        [sys.executable, "-m", "profiling_lab.utils.unified_profiler", *arguments, "endless.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whatever this one was started with
    )
    try:
        until = time.monotonic() + 120
        while len(ranks := [file for file in tmp_path.glob("pid.*") if file.read_text()]) < processes:
            assert process.poll() is None and time.monotonic() < until, "the script did not start"
            time.sleep(0.1)
        if code is None:
            process.terminate()
        else:
            os.killpg(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=120)
        assert process.returncode == (code or process.returncode) != 0, told
        for rank in ranks:
            with pytest.raises(ProcessLookupError):
                os.kill(int(rank.read_text()), 0)
        assert "unified_profiler.py" not in told, "its own traceback"
        assert "profiling-lab lines profiles/endless.sqlite" in told
        assert [file.name for file in (tmp_path / "profiles").iterdir()] == ["endless.sqlite"]
    finally:
        for rank in tmp_path.glob("pid.*"):
            with suppress(ProcessLookupError, ValueError):
                os.kill(int(rank.read_text()), signal.SIGKILL)


def command(**config: Any) -> str:
    words = UnifiedProfiler(ProfilingConfig(**config)).command("train.py", ["--lr", "1"])
    assert words[:4] == [sys.executable, "-m", "profiling_lab", "record"]
    return " ".join(words[4:])


def test_commands() -> None:
    assert command() == "-o profiles/train.sqlite train.py --lr 1", "auto: one process, whatever GPUs exist"
    assert command(mode="multi-gpu", gpus=4) == (
        "-o profiles/train.sqlite -m torch.distributed.run --nproc-per-node 4 train.py --lr 1"
    )
    assert command(gpus=4) == command(mode="multi-gpu", gpus=4)
    assert command(profile_steps=3, warmup_steps=2).startswith(
        "-o profiles/train.sqlite --warmup 2 --active 3 --repeat 1 train.py"
    )
    assert command(mode="deepspeed", gpus=4) == (
        "-o profiles/train.sqlite deepspeed --num_gpus 4 train.py --lr 1"
    )
    many = command(mode="multi-node", gpus=8, nodes=2, node_rank=1, rendezvous="first:29400")
    assert "--nnodes 2 --node-rank 1 --rdzv-backend c10d --rdzv-endpoint first:29400 train.py" in many


def test_files_of_ranks_in_folders_are_listed(tmp_path: Path) -> None:
    profiler = UnifiedProfiler(ProfilingConfig(output_dir=str(tmp_path)))
    assert profiler.generate_report() == f"no recording in {tmp_path}"
    (tmp_path / "node").mkdir()
    for name in ("a.rank0.sqlite", "a.rank1.sqlite", "node/a.rank2.sqlite"):
        (tmp_path / name).touch()
    *lines, empty, summary = profiler.generate_report().splitlines()
    assert lines == [
        f"profiling-lab lines {tmp_path}/a.rank0.sqlite",
        f"profiling-lab lines {tmp_path}/a.rank1.sqlite",
        f"profiling-lab lines {tmp_path}/node/a.rank2.sqlite",
        f"profiling-lab ranks {tmp_path}/a.rank*.sqlite {tmp_path}/node/a.rank*.sqlite",
    ]
    assert not empty and summary.startswith("no summary of all ranks: "), "what is no recording is said"


def test_the_ranks_are_summed_up(tmp_path: Path) -> None:
    job = Job(ranks=3)
    job.slow_compute[2] = 2_000_000
    job.write(tmp_path, "train.rank{rank}.sqlite", facts=True)
    report = UnifiedProfiler(ProfilingConfig(output_dir=str(tmp_path))).generate_report()
    assert f"profiling-lab ranks {tmp_path}/train.rank*.sqlite\n\n3 ranks in 3 files" in report
    assert "rank 2 is a straggler" in report


def test_a_second_run_keeps_the_first_and_reports_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')\n")
    for name in ("train.sqlite", "train-2.sqlite"):
        done = run("train.py", folder=tmp_path)
        assert done.returncode == 0 and "ran" in done.stdout, done.stderr
        assert done.stderr.splitlines()[-1] == f"profiling-lab lines profiles/{name}"
    (tmp_path / "profiles/train-3.rank1.sqlite").touch()
    free = UnifiedProfiler(ProfilingConfig(output_dir=str(tmp_path / "profiles"))).command("train.py")
    assert free[5].endswith("profiles/train-4.sqlite"), "of a job of ranks, too"


RANK = """
import os, pathlib, sys
numbers = [os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK")]
pathlib.Path(f"rank.{numbers[0]}").write_text(" ".join([*numbers, *sys.argv[1:]]))
"""


def test_several_machines_meet(tmp_path: Path) -> None:
    """Two launchers on this one, as each machine starts its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meet = f"127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "train.py").write_text(RANK)
    how = ["--mode", "multi-node", "--gpus", "1", "--nodes", "2", "--rendezvous", meet]
    machines = [
        subprocess.Popen(
            [sys.executable, "-m", "profiling_lab.utils.unified_profiler", *how, "--node-rank", str(node),
             "-o", f"node{node}", "train.py", "--lr", "1"],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for node in range(2)
    ]  # fmt: skip
    told = [machine.communicate(timeout=240)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], told
    said = sorted((tmp_path / f"rank.{rank}").read_text() for rank in range(2))
    assert said == ["0 0 2 0 --lr 1", "1 0 2 1 --lr 1"]


@pytest.mark.skipif(shutil.which("deepspeed") is None, reason="deepspeed is not on the PATH")
def test_deepspeed_itself_starts_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without GPUs on the CPU."""
    if torch.cuda.device_count() < 2:
        monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    (tmp_path / "train.py").write_text(RANK)
    monkeypatch.setenv("GROUP_RANK", "0")  # torchrun's own
    done = run("--mode", "deepspeed", "--gpus", "2", "train.py", "--lr", "1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    said = sorted((tmp_path / f"rank.{rank}").read_text() for rank in range(2))
    assert said == [f"{rank} {rank} 2 0 --local_rank={rank} --lr 1" for rank in range(2)]


TWO_GPUS = """
import os, sys
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
distributed.init_process_group("nccl")
model = DistributedDataParallel(torch.nn.Linear(1024, 1024).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(256, 1024, device="cuda")
for _ in range(6):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
if rank == 0:
    print("steps of", sys.argv[1:], flush=True)
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.multigpu
def test_a_job_on_two_gpus_is_recorded_and_summed_up(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO_GPUS)
    done = run("--mode", "multi-gpu", "--gpus", "2", "train.py", "--lr", "1", folder=tmp_path)
    assert done.returncode == 0 and "steps of ['--lr', '1']" in done.stdout, done.stderr
    files = sorted(path.name for path in (tmp_path / "profiles").iterdir())
    assert files == ["train.rank0.sqlite", "train.rank1.sqlite"]
    assert "profiling-lab ranks profiles/train.rank*.sqlite\n\n2 ranks in 2 files" in done.stderr
    found = api.ranks([tmp_path / "profiles" / name for name in files]).result
    assert found.common_steps >= 4 and found.world_size == 2
    assert any(row.series.kind == "AllReduce" and row.compared >= 4 for row in found.collectives)


def optimizer_step() -> Any:
    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    return torch.optim.SGD([weight], lr=0.1).step


def test_the_wrapper_begins_with_the_first_step_and_returns_its_file(tmp_path: Path) -> None:
    step = optimizer_step()
    wrapper = ProfilerWrapper(output_dir=tmp_path, gpu=False, num_profile_steps=2)
    assert not list(tmp_path.iterdir()), "what comes before the first step is not recorded"
    for number in range(5):
        with wrapper.profile_step(number):
            step()
    assert wrapper.finish() == tmp_path / "training.sqlite"
    assert wrapper.finish() == tmp_path / "training.sqlite"


def test_an_exception_ends_the_wrapper_s_recording(tmp_path: Path) -> None:
    step = optimizer_step()
    with pytest.raises(KeyError, match="mine"), ProfilerWrapper(output_dir=tmp_path, gpu=False) as wrapper:
        with wrapper.profile_step():
            step()
        raise KeyError("mine")
    assert (tmp_path / "training.sqlite").is_file() and not wrapper.recorder.is_recording


def test_switched_off_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unified_profiler.nvtx, "range", lambda *_: pytest.fail("a range"))
    monkeypatch.setattr(unified_profiler.nvtx, "mark", lambda *_: pytest.fail("a mark"))
    with get_profiler_context(enabled=False), NVTXAnnotator(enabled=False).range("x", color="red"):
        NVTXAnnotator(enabled=False).mark("y")
    wrapper = ProfilerWrapper(enabled=False, output_dir=tmp_path / "none")
    with wrapper.profile_step(1):
        pass
    assert wrapper.finish() is None and not (tmp_path / "none").exists()


def test_the_context_records(tmp_path: Path) -> None:
    with get_profiler_context(name="c", output_dir=tmp_path, gpu=False):
        optimizer_step()()
    assert (tmp_path / "c.sqlite").is_file()


def test_the_annotator_passes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(unified_profiler.nvtx, "mark", seen.append)
    NVTXAnnotator().mark("point")
    with NVTXAnnotator().range("x", "red") as opened:
        assert (opened.name, opened.color) == ("x", "red")
    assert seen == ["point"]
