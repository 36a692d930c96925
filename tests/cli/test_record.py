# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab record script.py` behaves as `python script.py`: each script runs both ways."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from cli.script_runs import SAYS, record, run, write
from package_root import PACKAGE_ROOT

REPO = Path(__file__).resolve().parents[2]


def tables(path: Path) -> set[str]:
    with sqlite3.connect(path) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def meta(path: Path) -> dict[str, str]:
    with sqlite3.connect(path) as connection:
        return dict(connection.execute("SELECT name, value FROM PYREC_META"))


SCRIPTS = {
    "globals": """
        import sys
        print(sorted((name, type(value).__name__) for name, value in globals().items()))
        print(__name__, __file__, __package__, __spec__, __cached__, __doc__, type(__builtins__))
        print(type(__loader__), __loader__.name, __loader__.path)
        print(sys.modules["__main__"].__dict__ is globals())
        """,
    "docstring": '"""What it is."""\nprint(__doc__)\n',
    "argv-and-path": "import sys; print(sys.argv, sys.path)",
    "no-future-imports-of-ours": "def f(x: undefined_name): pass",
    "annotations": "x: int = 3\nprint(__annotations__)",
    "input": "print(input('name? '), input())",
    "exit-none": "import sys; sys.exit()",
    "exit-zero": "import sys; sys.exit(0)",
    "exit-number": "import sys; sys.exit(3)",
    "exit-negative": "import sys; sys.exit(-1)",
    "exit-large": "import sys; sys.exit(259)",
    "exit-true": "import sys; sys.exit(True)",
    "exit-text": "import sys; sys.exit('no such thing')",
    "exit-object": "import sys; sys.exit((1, 'two'))",
    "exit-raised": "raise SystemExit",
    "exception": "def f():\n    return 1 / 0\nf()\n",
    "exception-chain": """
        def inner():
            raise KeyError("first")
        try:
            inner()
        except KeyError as error:
            raise ValueError("second") from error
        """,
    "exception-in-import": "import missing_module_of_nobody",
    "exception-from-c": "sorted([1, 2], key=lambda n: n / 0)",
    "exception-unprintable": """
        class Odd(Exception):
            def __str__(self):
                raise RuntimeError("cannot print")
        raise Odd
        """,
    "generator-exit": "raise GeneratorExit('odd, but allowed')",
    "syntax-error": "print('before')\nif True print('after')\n",
    "indentation-error": "def f():\nreturn 1\n",
    "own-excepthook": """
        import sys
        sys.excepthook = lambda kind, value, tb: print("hook:", kind.__name__, value, tb.tb_lineno)
        raise ValueError("x")
        """,
    "broken-excepthook": """
        import sys
        def hook(*_):
            raise RuntimeError("the hook")
        sys.excepthook = hook
        raise ValueError("the script")
        """,
    "interrupted": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(10)\n",
    "interrupted-and-handled": """
        import os, signal, time
        try:
            os.kill(os.getpid(), signal.SIGINT); time.sleep(10)
        except KeyboardInterrupt:
            print("handled")
        """,
    "terminated": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nimport time; time.sleep(10)\n",
    "os-exit": "import os\nprint('flushed', flush=True)\nos._exit(7)\n",
    "atexit": "import atexit\natexit.register(print, 'goodbye')\nprint('hello')\n",
    "thread-outlives-main": """
        import threading, time
        def work():
            time.sleep(0.2)
            print("thread is done")
        threading.Thread(target=work).start()
        print("main is done")
        """,
    "thread-outlives-exception": """
        import threading, time
        threading.Thread(target=lambda: (time.sleep(0.2), print("thread is done"))).start()
        raise ValueError("main failed")
        """,
    "pool-not-shut-down": """
        from concurrent.futures import ThreadPoolExecutor
        import time
        pool = ThreadPoolExecutor(1)  # lines must not mix
        for i in range(4):
            pool.submit(lambda: (time.sleep(0.05), print("job is done")))
        print("main is done")
        """,
    "daemon-thread": """
        import threading, time
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        """,
    "exception-in-thread": """
        import threading
        def work():
            raise ValueError("in a thread")
        t = threading.Thread(target=work, name="worker"); t.start(); t.join()
        """,
    "pickle": """
        import pickle
        class Point:
            def __init__(self, x): self.x = x
        copy = pickle.loads(pickle.dumps(Point(3)))
        print(copy.x, type(copy) is Point, Point.__module__)
        """,
    "spawn": """
        import multiprocessing as mp
        class Job:
            def __init__(self, n): self.n = n
        def work(job): return job.n * 2, __name__
        if __name__ == "__main__":
            with mp.get_context("spawn").Pool(2) as pool:
                print(pool.map(work, [Job(1), Job(2)]))
        """,
    "fork": """
        import multiprocessing as mp
        def work(n): return n * 2, __name__
        if __name__ == "__main__":
            with mp.get_context("fork").Pool(2) as pool:
                print(pool.map(work, [1, 2]))
        """,
    "bare-fork": """
        import os, sys
        pid = os.fork()
        if pid == 0:
            print("child", flush=True)
            sys.exit(5)
        print("child's exit code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
    "source-of-main": """
        import inspect, sys
        def f(): return 42
        print(inspect.getsource(f), inspect.getfile(sys.modules["__main__"]))
        """,
    "warning": "import warnings\nwarnings.warn('old', DeprecationWarning)\n",
    "asyncio": """
        import asyncio
        async def main():
            await asyncio.sleep(0)
            return 4
        print(asyncio.run(main()))
        """,
    "latin-1": "# -*- coding: latin-1 -*-\nprint(ascii('\u00e9'))\n",
    "deep-recursion": "def f(n):\n    return n and f(n - 1)\nprint(f(900))\n",
    "last-value": """
        import atexit, sys
        atexit.register(lambda: print("last:", repr(sys.last_value)))
        raise ValueError("kept for debuggers")
        """,
}


def without_fork_warning(err: str) -> str:
    """Python 3.12 and later warn at os.fork() when the process has threads, and the recorder has one."""
    return re.sub(
        r"^.*DeprecationWarning: This process .* is multi-threaded.*\n.*os\.fork\(\)\n", "", err, flags=re.M
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_ends_and_prints_as_alone(name: str, tmp_path: Path) -> None:
    script = write(tmp_path, SCRIPTS[name])
    if name == "latin-1":
        script.write_bytes(dedent(SCRIPTS[name]).encode("latin-1"))
    alone = run(tmp_path, "script.py", "one", "-o", "two", stdin="Ada\nLovelace\n")
    recorded = record(tmp_path, "-o", "out.sqlite", "script.py", "one", "-o", "two", stdin="Ada\nLovelace\n")
    assert recorded.out == alone.out
    assert without_fork_warning(recorded.err) == alone.err
    assert recorded.code == alone.code
    if name in ("terminated", "os-exit"):
        assert (tmp_path / "out.sqlite.spool").is_file()
        assert not (tmp_path / "out.sqlite").exists()
    else:
        assert "PYREC_META" in tables(tmp_path / "out.sqlite")
        assert not (tmp_path / "out.sqlite.spool").exists()
        assert recorded.said.count("wrote out.sqlite") == 1


def test_module_of_a_package(tmp_path: Path) -> None:
    write(tmp_path, "print('package imported')\nSIZE = 3\n", "pack/__init__.py")
    write(tmp_path, "from . import SIZE\nfrom .part import double\nprint(double(SIZE))\n", "pack/__main__.py")
    write(
        tmp_path,
        """
        import sys
        def double(n): return 2 * n
        if __name__ == "__main__":
            print(sys.argv, sys.path[0], __package__, __spec__.name, __file__, __cached__)
            raise ValueError("from a module")
        """,
        "pack/part.py",
    )
    for module in ("pack", "pack.part"):
        alone = run(tmp_path, "-m", module, "--flag", "x")
        recorded = record(tmp_path, "-o", f"{module}.sqlite", "-m", module, "--flag", "x")
        assert (recorded.out, recorded.code) == (alone.out, alone.code)
        # Python shows its own runpy frames above the module's; we show none.
        assert recorded.err.splitlines()[-3:] == alone.err.splitlines()[-3:]
        assert "profiling_lab" not in recorded.err
        assert (tmp_path / f"{module}.sqlite").is_file()


def test_script_in_another_folder_and_behind_a_link(tmp_path: Path) -> None:
    write(tmp_path, "VALUE = 5\n", "real/neighbour.py")
    write(
        tmp_path, "import sys, neighbour\nprint(neighbour.VALUE, sys.path[0], __file__)\n", "real/script.py"
    )
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "script.py")
    for name in ("real/script.py", "link.py", str(tmp_path / "real" / "script.py")):
        alone, recorded = run(tmp_path, name), record(tmp_path, "--overwrite", "-o", "out.sqlite", name)
        assert (recorded.out, recorded.err, recorded.code) == (alone.out, alone.err, alone.code)


def test_nothing_heavy_is_imported_before_the_script(tmp_path: Path) -> None:
    write(
        tmp_path, "import sys; print([m for m in ('torch', 'numpy', 'pyarrow', 'rich') if m in sys.modules])"
    )
    assert record(tmp_path, "script.py").out.strip() == "[]"


def test_stacks_begin_at_the_script(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        from profiling_lab._recorder import python_stacks
        def f():
            return python_stacks.capture_here()
        print([(name, line) for _, name, line, _ in python_stacks.stack(f())])
        """,
    )
    assert record(tmp_path, "script.py").out.strip() == "[('f', 4), ('<module>', 5)]"
    assert record(tmp_path, "--no-stacks", "script.py").out.strip() == "[]"


def test_summary_without_a_gpu(tmp_path: Path) -> None:
    write(tmp_path, "print('done')")
    recorded = record(tmp_path, "-o", "run.sqlite", "script.py", cupti="/nonexistent/libcupti.so")
    assert recorded.code == 0
    first, *rest = recorded.said.splitlines()
    assert first.startswith(f"{SAYS}recorded ") and " of script.py: no GPU activity, nothing dropped" in first
    assert first.endswith("next: profiling-lab info run.sqlite")
    assert any(line.startswith(f"{SAYS}no GPU activity: ") for line in rest)
    assert meta(tmp_path / "run.sqlite")["script"] == "script.py"


@pytest.mark.parametrize("ending", ["", "raise ValueError('late')", "import sys; sys.exit(3)"])
def test_summary_with_kernels(ending: str, tmp_path: Path, fake_cupti: Path) -> None:
    write(
        tmp_path,
        f"""
        import sys
        sys.path.append({str(REPO / "tests" / "recorder")!r})
        from fake_driver import Fake
        fake = Fake()
        def train():
            for _ in range(5):
                fake.kernel("_Z3addPf", ns=1000)
        train()
        fake.copy(nbytes=64)
        {ending}
        """,
    )
    recorded = record(tmp_path, "-o", "run.sqlite", "script.py", cupti=str(fake_cupti))
    assert "5 kernels, 1 copy, 100.0 % of 6 CUDA calls with a Python stack, nothing dropped" in recorded.said
    assert recorded.said.splitlines()[0].endswith("next: profiling-lab lines run.sqlite")
    assert "no GPU activity" not in recorded.said
    with sqlite3.connect(tmp_path / "run.sqlite") as connection:
        outermost = connection.execute(
            """SELECT DISTINCT function.value, file.value FROM PYREC_STACK s
               JOIN PYREC_FRAME f ON f.id = s.frameId
               JOIN StringIds function ON function.id = f.functionId JOIN StringIds file ON file.id = f.fileId
               WHERE s.parentId = 0"""
        ).fetchall()
    assert outermost == [("<module>", str(tmp_path / "script.py"))]


def test_without_output_a_free_name_is_chosen(tmp_path: Path) -> None:
    write(tmp_path, "print('done')", "train.py")
    for _ in range(3):
        assert record(tmp_path, "train.py").code == 0
    assert sorted(p.name for p in tmp_path.glob("*.sqlite")) == [
        "train-2.sqlite",
        "train-3.sqlite",
        "train.sqlite",
    ]


def test_every_rank_has_its_own_file(tmp_path: Path) -> None:
    write(tmp_path, "print('done')", "train.py")
    for rank in ("0", "1"):
        assert record(tmp_path, "-o", "run-{rank}.sqlite", "train.py", RANK=rank).code == 0
        assert record(tmp_path, "train.py", RANK=rank).code == 0
    assert sorted(p.name for p in tmp_path.glob("*.sqlite")) == [
        "run-0.sqlite",
        "run-1.sqlite",
        "train.rank0.sqlite",
        "train.rank1.sqlite",
    ]


def test_a_name_that_is_taken_does_not_end_a_rank(tmp_path: Path) -> None:
    write(tmp_path, "print('done')", "train.py")
    for _ in range(2):
        recorded = record(tmp_path, "-o", "run.sqlite", "train.py", SLURM_PROCID="1", SLURM_NTASKS="2")
        assert (recorded.code, recorded.out) == (0, "done\n"), recorded.err
    assert sorted(p.name for p in tmp_path.glob("*.sqlite*")) == ["run.rank1-2.sqlite", "run.rank1.sqlite"]
    assert "run.rank1.sqlite exists already, so rank 1 records into run.rank1-2.sqlite" in recorded.said


def test_existing_output_is_refused_before_the_script_runs(tmp_path: Path) -> None:
    write(tmp_path, "print('ran')")
    (tmp_path / "run.sqlite").write_text("precious")
    refused = record(tmp_path, "-o", "run.sqlite", "script.py")
    assert refused.code == 2 and refused.out == ""
    assert "run.sqlite exists already" in refused.err and "--overwrite" in refused.err
    assert (tmp_path / "run.sqlite").read_text() == "precious"
    assert record(tmp_path, "--overwrite", "-o", "run.sqlite", "script.py").out == "ran\n"
    assert "PYREC_META" in tables(tmp_path / "run.sqlite")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        pytest.param(["missing.py"], 4, "there is no script missing.py", id="no-such-script"),
        pytest.param(["."], 4, "is a directory", id="directory"),
        pytest.param(["binary.py"], 4, "is a binary file", id="binary"),
        pytest.param(
            ["python9.99", "script.py"],
            4,
            "there is no script python9.99 (looked in ",
            id="neither-script-nor-program",
        ),
        pytest.param(
            ["-m", "no_such_module_here"], 4, "there is no module no_such_module_here", id="no-module"
        ),
        pytest.param(
            ["-m", "bare_package.nothing"], 4, "there is no module bare_package.nothing", id="no-submodule"
        ),
        pytest.param(["-m", "bare_package"], 4, "bare_package.__main__", id="package-without-main"),
        pytest.param(["-o", "missing/run.sqlite", "script.py"], 2, "missing does not exist", id="no-folder"),
        pytest.param(["-o", ".", "script.py"], 2, "is a folder", id="output-is-folder"),
        pytest.param([], 2, "SCRIPT", id="no-script"),
        pytest.param(["--no-such-option", "script.py"], 2, "--no-such-option", id="unknown-option"),
    ],
)
def test_what_cannot_be_recorded(tmp_path: Path, arguments: list[str], code: int, sentence: str) -> None:
    write(tmp_path, "print('ran')")
    write(tmp_path, "", "bare_package/__init__.py")
    (tmp_path / "binary.py").write_bytes(b"\x7fELF\0\0\0")
    refused = record(tmp_path, *arguments)
    assert refused.code == code, refused.err
    said = refused.err + refused.said
    assert sentence in said and "Traceback" not in said
    assert refused.out == ""
    assert not list(tmp_path.glob("*.sqlite*"))


def test_script_that_changes_its_folder(tmp_path: Path) -> None:
    write(tmp_path, "import os; os.mkdir('elsewhere'); os.chdir('elsewhere')")
    assert "wrote run.sqlite" in record(tmp_path, "-o", "run.sqlite", "script.py").said
    assert (tmp_path / "run.sqlite").is_file()


@pytest.mark.parametrize(("script_code", "code"), [(0, 1), (3, 3)])
def test_output_that_cannot_be_written_in_the_end(script_code: int, code: int, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path, f"import os, sys; os.mkdir('out/run.sqlite'); sys.exit({script_code})")
    recorded = record(tmp_path, "-o", "out/run.sqlite", "script.py")
    assert recorded.code == code
    assert "cannot write" in recorded.said and "what was captured is kept in" in recorded.said
    assert "Traceback" not in recorded.err
    assert (tmp_path / "out" / "run.sqlite.spool").is_file()


def test_without_the_compiled_recorder(tmp_path: Path) -> None:
    write(tmp_path, "print('ran')")
    write(tmp_path, "import sys; sys.modules['profiling_lab._recorder'] = None", "sitecustomize.py")
    refused = record(tmp_path, "script.py", PYTHONPATH=f"{tmp_path}{os.pathsep}{PACKAGE_ROOT}")
    assert refused.code == 1 and refused.out == ""
    assert "the recorder cannot be loaded" in refused.err and "profiling-lab doctor" in refused.err
    assert "Traceback" not in refused.err


def test_recorder_inside_recorder_is_the_scripts_error(tmp_path: Path) -> None:
    write(tmp_path, "import profiling_lab\nwith profiling_lab.record('inner.sqlite'):\n    pass\n")
    recorded = record(tmp_path, "-o", "outer.sqlite", "script.py")
    assert recorded.code == 1
    assert recorded.err.splitlines()[-1].endswith("stop it before starting another")
    assert (tmp_path / "outer.sqlite").is_file() and not (tmp_path / "inner.sqlite").exists()


def test_second_interrupt_while_the_script_runs_keeps_the_recording(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        import time
        try:
            print("ready", flush=True)
            time.sleep(30)
        finally:
            print("cleaning up", flush=True)
            time.sleep(0.3)
        """,
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "profiling_lab", "record", "-o", "run.sqlite", "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whatever this one was started with
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "cleaning up\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in err and "wrote run.sqlite" in err
    assert "PYREC_META" in tables(tmp_path / "run.sqlite")


def test_help_has_examples(tmp_path: Path) -> None:
    shown = record(tmp_path, "--help")
    assert shown.code == 0
    assert "profiling-lab record -o run.sqlite train.py --epochs 2" in shown.out
