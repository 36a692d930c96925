# SPDX-License-Identifier: Apache-2.0
"""Windows in a process that runs: opened from outside, and never at the price of the job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from recorder.live_job import SCRIPT, LiveJob

STEPS = ("--steps", "2", "--step-by", "calls")


@pytest.fixture
def live(tmp_path: Path, fake_library: Path) -> Iterator[Callable[..., LiveJob]]:
    jobs: list[LiveJob] = []

    def start(script: str = SCRIPT, *options: str, **env: str) -> LiveJob:
        jobs.append(LiveJob(tmp_path, fake_library, script, *options, **env))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


def kernels(path: Path) -> list[str]:
    with sqlite3.connect(path) as file:
        rows = file.execute(
            "SELECT s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.shortName"
            " ORDER BY k.start"
        ).fetchall()
    return [name for (name,) in rows]


def meta(path: Path) -> dict[str, str]:
    with sqlite3.connect(path) as file:
        return dict(file.execute("SELECT name, value FROM PYREC_META"))


def test_dormant_attaches_nothing_and_does_not_wake_up(live: Callable[..., LiveJob]) -> None:
    job = live()
    job.do("steps(3); assert not fake.subscribed() and not fake.callbacks_enabled()")
    job.do("import threading; assert threading.enumerate() == [threading.main_thread()]")
    job.do("assert not any('profiling_lab' in type(f).__module__ for f in sys.meta_path)")
    job.do("assert not {'numpy', 'pyarrow', 'sqlite3', 'torch', 'rich'} & set(sys.modules)")
    job.do("assert not [m for m in sys.modules if m.startswith('profiling_lab.recording.convert')]")
    switches = """
def name(task): return open(f'/proc/self/task/{task}/comm').read().strip()
def named(): return [task for task in os.listdir('/proc/self/task') if name(task) == 'plab-live']
while not named(): time.sleep(0.01)  # it names itself when it first runs
tasks = named()
def wakes(): return [l for l in open(f'/proc/self/task/{tasks[0]}/status') if 'ctxt' in l]
assert len(tasks) == 1, tasks
def sleeps():
    before = wakes(); time.sleep(0.5); return wakes() == before
assert any(sleeps() for _ in range(20)), wakes()  # a thread that polls never does
blocked = next(l for l in open(f'/proc/self/task/{tasks[0]}/status') if l.startswith('SigBlk'))
assert int(blocked.split()[1], 16) & (1 << 14), 'SIGTERM is blocked'
"""
    job.do(f"exec({switches!r})")
    code, out, _ = job.end()
    assert code == 0 and out == "the end\n"
    assert not job.socket.exists()


def test_two_windows_into_two_files_from_another_folder(live: Callable[..., LiveJob], tmp_path: Path) -> None:
    job = live()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    job.do("steps(3)")
    first = job.attach(*STEPS, "-o", "one.sqlite", cwd=elsewhere)
    job.do("steps(2)")  # one of warm-up, one of two
    job.do("assert fake.callbacks_enabled() and not fake.kind_enabled(51), 'no graphs as a whole'")
    job.do("steps(2)")
    code, said = job.finish(first)
    assert code == 0 and "wrote one.sqlite" in said and "nothing dropped" in said
    job.do("assert not fake.subscribed() and not fake.callbacks_enabled()")
    second = job.attach(*STEPS, "--warmup", "0", "--wait", "1", "-o", "two.sqlite", cwd=elsewhere)
    job.do("steps(5)")
    assert job.finish(second)[0] == 0
    assert kernels(elsewhere / "one.sqlite") == ["step4", "step5"]
    assert kernels(elsewhere / "two.sqlite") == ["step8", "step9"]
    assert meta(elsewhere / "one.sqlite")["finished"] == "yes"
    with sqlite3.connect(elsewhere / "one.sqlite") as file:
        frames = file.execute("SELECT s.value FROM PYREC_FRAME JOIN StringIds s ON s.id = fileId").fetchall()
    assert frames and not [name for (name,) in frames if "profiling_lab" in name], (
        "the launcher's are left out"
    )
    assert not list(tmp_path.rglob("*.spool")), "the capture is gone where the file is"
    code, out, _ = job.command("status", str(job.pid))
    assert code == 0 and "one.sqlite" in out and "two.sqlite" in out and "dormant" in out
    assert job.end()[0] == 0


def test_by_the_clock(live: Callable[..., LiveJob], tmp_path: Path) -> None:
    job = live()
    job.do("fake.kernel('before')")
    window = job.attach("--seconds", "0.2", "-o", "run.sqlite")
    job.do("while fake.subscribed(): fake.kernel('within')")
    assert job.finish(window)[0] == 0
    assert set(kernels(tmp_path / "run.sqlite")) == {"within"}


def test_steps_of_an_optimizer_made_before_the_attach(live: Callable[..., LiveJob], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    job = live(
        SCRIPT.replace(
            "def steps",
            """
import torch
model = torch.nn.Linear(2, 2); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def steps""",
        ).replace("profiling_lab.step()", "model(torch.ones(1, 2)).sum().backward(); optimizer.step()")
    )
    job.do("hooks = sys.modules['torch.optim.optimizer']._global_optimizer_post_hooks; assert not hooks")
    job.do("steps(2)")
    for name, expected in (("one", ["step3", "step4"]), ("two", ["step6", "step7"])):
        window = job.attach("--steps", "2", "-o", f"{name}.sqlite")
        job.do("steps(3)")
        code, said = job.finish(window)
        assert code == 0, said
        assert kernels(tmp_path / f"{name}.sqlite") == expected
    assert meta(tmp_path / "two.sqlite")["autograd_link"] == "on"
    job.do("assert len(hooks) == 1, 'one hook, which stays'; steps(2)")


def test_going_through_the_optimizers_hooks_while_a_window_ends(live: Callable[..., LiveJob]) -> None:
    """torch iterates over its hooks; taking ours out meanwhile would raise in the program."""
    pytest.importorskip("torch")
    job = live(
        SCRIPT.replace(
            "def steps",
            """
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
def slow(*_):
    while waiting: time.sleep(0.01)
waiting = False
def steps""",
        ).replace("profiling_lab.step()", "optimizer.step()")
    )
    first = job.attach("--steps", "1", "--warmup", "0", "-o", "one.sqlite")
    job.do("register_optimizer_step_post_hook(slow); steps(2)")
    assert job.finish(first)[0] == 0
    second = job.attach("--steps", "1", "--warmup", "0", "-o", "two.sqlite")
    job.do("import threading; end = threading.Timer(1, lambda: globals().update(waiting=False))")
    job.do("waiting = True; end.start(); steps(1)")
    job.do("steps(1)")
    assert job.finish(second)[0] == 0
    assert job.end()[0] == 0


def test_nvtx_ranges_of_libraries_that_woke_up_before(live: Callable[..., LiveJob], tmp_path: Path) -> None:
    pytest.importorskip("nvtx", reason="the nvtx package is not installed")
    job = live()
    job.do("import nvtx; exec('with nvtx.annotate(\"early\"): pass')")
    window = job.attach("--steps", "2", "--step-by", "nvtx:turn", "-o", "run.sqlite")
    turn = "with nvtx.annotate('turn'): fake.kernel('k%d' % i)\\n"
    job.do(f"for i in range(5): exec({turn!r}.replace('\\\\n', chr(10)))")
    code, said = job.finish(window)
    assert code == 0, said
    assert kernels(tmp_path / "run.sqlite") == ["k1", "k2"]
    with sqlite3.connect(tmp_path / "run.sqlite") as file:
        rows = file.execute("SELECT s.value FROM NVTX_EVENTS JOIN StringIds s ON s.id = textId").fetchall()
    assert [name for (name,) in rows if name in ("turn", "early")] == ["turn", "turn"]


def test_the_second_attach_is_refused(live: Callable[..., LiveJob]) -> None:
    job = live()
    first = job.attach(*STEPS, "-o", "one.sqlite")
    code, _, said = job.command("attach", str(job.pid), *STEPS, "-o", "two.sqlite")
    assert code == 1 and "is being recorded" in said and f"detach {job.pid}" in said
    job.do("steps(4)")
    assert job.finish(first)[0] == 0


def test_detach_ends_the_window_and_its_attach_writes_the_file(
    live: Callable[..., LiveJob], tmp_path: Path
) -> None:
    job = live()
    window = job.attach("--steps", "100", "--step-by", "calls", "-o", "run.sqlite")
    job.do("steps(3)")
    code, out, _ = job.command("detach", str(job.pid))
    assert code == 0 and str(tmp_path / "run.sqlite") in out
    code, said = job.finish(window)
    assert code == 0 and "ended early: detached" in said
    assert kernels(tmp_path / "run.sqlite") == ["step1", "step2"]
    code, _, said = job.command("detach", str(job.pid))
    assert code == 2 and "is not being recorded" in said


def test_ctrl_c_in_attach_keeps_the_recording_and_the_job_goes_on(
    live: Callable[..., LiveJob], tmp_path: Path
) -> None:
    job = live()
    window = job.attach("--steps", "100", "--step-by", "calls", "-o", "run.sqlite")
    job.do("steps(3)")
    window.send_signal(signal.SIGINT)
    code, said = job.finish(window)
    assert code == 0 and "ended early" in said, said
    assert kernels(tmp_path / "run.sqlite") == ["step1", "step2"]
    job.do("steps(1)")
    assert job.end()[0] == 0


def test_an_attach_that_is_killed_ends_its_window(live: Callable[..., LiveJob], tmp_path: Path) -> None:
    job = live()
    window = job.attach("--steps", "100", "--step-by", "calls", "-o", "run.sqlite")
    job.do("steps(3)")
    window.kill()
    window.communicate()
    job.do("while fake.subscribed(): time.sleep(0.01)")
    code, _, said = job.command("recover", "run.sqlite.spool")
    assert code == 0, said
    assert kernels(tmp_path / "run.sqlite") == ["step1", "step2"]
    after = job.attach(*STEPS, "-o", "after.sqlite")
    job.do("steps(4)")
    assert job.finish(after)[0] == 0


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), 9)", "os._exit(3)", "os.execv('/bin/true', ['true'])"])
def test_a_process_that_is_gone_in_its_window(live: Callable[..., LiveJob], tmp_path: Path, how: str) -> None:
    job = live()
    window = job.attach("--steps", "100", "--step-by", "calls", "-o", "run.sqlite")
    job.do("steps(3); time.sleep(1.5)")  # what is older than a flush is on its way to the file
    assert job.job.stdin is not None
    job.job.stdin.write(how + "\n")
    job.end()
    code, said = job.finish(window)
    assert code == 1 and "recovered" in said and "ended while it was recorded" in said, said
    assert kernels(tmp_path / "run.sqlite") == ["step1", "step2"]
    assert (tmp_path / "run.sqlite.spool").exists()
    code, _, said = job.command("attach", str(job.pid), *STEPS)
    assert code == 2 and "there is no process" in said
    assert job.command("status")[1].startswith("no process can be attached to")
    assert not job.socket.exists(), "stale sockets are cleaned"


def test_a_program_that_ends_in_its_window(live: Callable[..., LiveJob], tmp_path: Path) -> None:
    job = live()
    window = job.attach("--steps", "100", "--step-by", "calls", "-o", "run.sqlite")
    job.do("steps(3)")
    assert job.end()[:2] == (0, "the end\n")
    code, said = job.finish(window)
    assert code == 0 and "ended early: the program ended" in said, said
    assert kernels(tmp_path / "run.sqlite") == ["step1", "step2"]
    assert meta(tmp_path / "run.sqlite")["finished"] == "yes"


def test_a_window_that_never_began(live: Callable[..., LiveJob], tmp_path: Path) -> None:
    job = live()
    window = job.attach(*STEPS, "-o", "run.sqlite")
    assert job.end()[0] == 0
    code, said = job.finish(window)
    assert code == 3 and "nothing was recorded" in said and "0 steps ended" in said, said
    assert not list(tmp_path.glob("run.sqlite*"))


def has_a_socket(process: int) -> bool:
    for descriptor in os.listdir(f"/proc/{process}/fd"):
        # It may be closed meanwhile.
        with suppress(FileNotFoundError):
            if "socket" in os.readlink(f"/proc/{process}/fd/{descriptor}"):
                return True
    return False


def test_a_forked_child_does_not_answer_for_its_parent(live: Callable[..., LiveJob], tmp_path: Path) -> None:
    job = live()
    window = job.attach("--steps", "100", "--step-by", "calls", "-o", "run.sqlite")
    job.do("steps(3)")
    job.do("child = os.fork() or (time.sleep(100), os._exit(0))")
    job.do("pid = child; print(pid, file=open('child', 'w'))")
    child = int((tmp_path / "child").read_text())
    while has_a_socket(child):  # until the child is past what it does after a fork
        time.sleep(0.01)
    try:
        code, _, said = job.command("attach", str(child), *STEPS)
        assert code == 2 and "cannot be attached to" in said
        assert job.job.stdin is not None
        job.job.stdin.write("os._exit(0)\n")
        job.job.stdin.close()
        code, said = job.finish(window)
        assert code == 1 and "recovered" in said, said
        code, _, said = job.command("attach", str(job.pid), *STEPS)
        assert code == 2
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_programs_own_recording_goes_first(live: Callable[..., LiveJob], tmp_path: Path) -> None:
    job = live()
    window = job.attach("--steps", "100", "--step-by", "calls", "-o", "run.sqlite")
    job.do("steps(3)")
    job.do('exec(\'with profiling_lab.record("own.sqlite"): fake.kernel("own")\')')
    code, said = job.finish(window)
    assert code == 0 and "its own recording" in said, said
    assert kernels(tmp_path / "run.sqlite") == ["step1", "step2"]
    assert kernels(tmp_path / "own.sqlite") == ["own"]
    job.do("own = profiling_lab.recording.Recorder('more.sqlite'); own.start()")
    code, _, said = job.command("attach", str(job.pid), *STEPS)
    assert code == 1 and "already running" in said


def test_a_program_that_closes_all_descriptors(live: Callable[..., LiveJob], tmp_path: Path) -> None:
    job = live()
    job.do("os.closerange(3, 2000); fds = [os.open('f%d' % i, 66) for i in range(1100)]")
    code, _, said = job.command("attach", str(job.pid), *STEPS)
    assert code in (1, 2) and "process" in said
    code, out, err = job.end()
    assert code == 0 and "Traceback" not in err and out == "the end\n"
    assert all(file.stat().st_size == 0 for file in tmp_path.glob("f[0-9]*")), "nothing is written into them"


GARBAGE = [b"", b"\0", b"{", b"[]", b"null", b"{}", b'{"do": []}', b'{"do": "attach"}', b"x" * 60_000]
GARBAGE += [json.dumps({"do": "attach", "path": "/x", "steps": "many"}).encode()]
GARBAGE += [json.dumps({"do": "attach", "path": "relative", "steps": 1}).encode()]
GARBAGE += [json.dumps({"do": "attach", "path": "/x", "moon": 1}).encode()]


def test_garbage_on_the_socket(live: Callable[..., LiveJob], tmp_path: Path) -> None:
    job = live()
    for garbage in GARBAGE:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.settimeout(60)
            client.connect(str(job.socket))
            client.send(garbage)
            assert garbage == b"" or b"refused" in client.recv(9999), garbage
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(str(job.socket))  # says nothing, and the job does not wait for it
        window = job.attach(*STEPS, "-o", "run.sqlite")
        job.do("steps(4)")
        assert job.finish(window)[0] == 0
    assert job.end()[0] == 0


def test_more_clients_than_are_served(live: Callable[..., LiveJob]) -> None:
    job = live()
    clients = []
    for _ in range(40):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.connect(str(job.socket))
        clients.append(client)
    for client in clients:
        client.close()
    window = job.attach(*STEPS, "-o", "run.sqlite")
    job.do("steps(4)")
    assert job.finish(window)[0] == 0


def test_an_existing_file_is_refused(live: Callable[..., LiveJob], tmp_path: Path) -> None:
    job = live()
    (tmp_path / "run.sqlite").write_text("mine")
    code, _, said = job.command("attach", str(job.pid), *STEPS, "-o", "run.sqlite")
    assert code == 2 and "exists already" in said
    assert (tmp_path / "run.sqlite").read_text() == "mine"
    window = job.attach(*STEPS, "-o", "run.sqlite", "--overwrite")
    job.do("steps(4)")
    assert job.finish(window)[0] == 0
    assert kernels(tmp_path / "run.sqlite") == ["step1", "step2"]
    (tmp_path / "two.sqlite.spool").write_text("a capture")
    code, _, said = job.command("attach", str(job.pid), *STEPS, "-o", "two.sqlite")
    assert code == 2 and "recover" in said


def test_a_job_without_a_private_folder_runs(tmp_path: Path, live: Callable[..., LiveJob]) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir()
    folder.chmod(0o755)
    job = live()
    code, out, err = job.end()
    assert code == 0 and out == "the end\n"
    assert "cannot be attached to" in err and "must belong to user" in err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused(live: Callable[..., LiveJob]) -> None:
    public = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's folders are closed to other users
    os.chmod(public, 0o755)
    job = live(PROFILING_LAB_SOCKETS=str(public / "s"))
    code = (
        "import sys; from profiling_lab.recording.live import control_socket as c; import os, socket\n"
        "from profiling_lab.errors import UsageError\n"
        "from profiling_lab import _recorder\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"try: c.connect({job.pid})\n"
        "except UsageError as error: assert 'only that user' in str(error), error\n"
        "else: sys.exit('connected')\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        f"try: s.connect({str(job.socket)!r})\n"
        "except PermissionError: pass\n"
        "else: sys.exit('connected')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=job.environment, capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    # And if the folder's mode did not keep them out, the kernel tells who they are.
    os.chmod(job.sockets, 0o777)
    os.chmod(job.socket, 0o777)
    code = (
        "import os, socket\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(60)\n"
        f"s.connect({str(job.socket)!r})\n"
        'try: s.send(b\'{"do": "status"}\'); answer = s.recv(9999)\n'
        "except (ConnectionResetError, BrokenPipeError): answer = b''\n"
        "assert answer == b'', answer\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=job.environment, capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    shutil.rmtree(public)


def test_modes_and_owner(live: Callable[..., LiveJob]) -> None:
    job = live()
    folder, ours = job.sockets.lstat(), job.socket.lstat()
    assert stat.S_IMODE(folder.st_mode) == 0o700 and folder.st_uid == os.geteuid()
    assert stat.S_ISSOCK(ours.st_mode) and stat.S_IMODE(ours.st_mode) == 0o600
    assert ours.st_uid == os.geteuid()
