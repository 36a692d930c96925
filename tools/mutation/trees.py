# SPDX-License-Identifier: Apache-2.0
"""Copies of the source tree, one a worker, in which a mutant is made, built and tested; never the user's own.

A server that has imported torch and pytest is forked for each mutant, which saves their import. The tests of
a mutant run in a session of their own, which ends with them.
"""

from __future__ import annotations

import filecmp
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from mutation import Mutant

_MODULES = ("torch", "pytest", "hypothesis", "_pytest.assertion.rewrite", "mutation.trees")
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(list(_MODULES))
_NOTHING = os.devnull
_ALONE = {
    "csrc/ops/attention/cpu/": (
        "tests/ops/keys/test_attention_tasks.py",
        "tests/ops/emulation/attention_cpu.cpp",
    ),
    "csrc/torch_abi/": ("tests/ops/test_torch_abi_alone.py", "tests/ops/emulation/torch_abi.cpp"),
    "csrc/ops/element_type.h": ("tests/ops/test_element_type.py", "csrc/ops/element_type.h"),
}
"""By folder or file the test that compiles it itself, in seconds, and a source that has it all. It comes
first, also when it was not recorded: the library is built for those alone that survive it."""
_OTHER_TREE = "the tests ran another tree"


class Tree:
    def __init__(self, source: Path, target: Path) -> None:
        self.root = target
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=source, check=True, capture_output=True).stdout.decode()
        built = [str(file.relative_to(source)) for file in (source / "profiling_lab").glob("*.so")]
        for name in (*names.split("\0"), *built):
            old, new = source / name, target / name
            if not name or not old.is_file():
                continue
            if new.suffix == ".so" and (target / "build").exists():
                continue  # built here
            if new.exists() and filecmp.cmp(old, new, shallow=False):
                continue
            new.parent.mkdir(parents=True, exist_ok=True)
            # C++ with the time of now: what was built may be newer than the original. Python with its own,
            # or a mutant of this very second could share the bytecode of the copy.
            (shutil.copy2 if new.suffix == ".py" else shutil.copy)(old, new)

    def configure(self) -> None:
        """For C++: a build folder, and the library as it is without a mutant."""
        launcher = [f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}"] if (ccache := shutil.which("ccache")) else []
        # -O1 takes half the time of -O2. Without -g the library has no line numbers: equal code, equal bytes.
        flags = "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -DNDEBUG"
        options = ["-DPROFILING_LAB_CUDA=OFF", flags, *launcher]
        subprocess.run(
            ["cmake", "--preset", "dev", *options], cwd=self.root, check=True, stdout=subprocess.DEVNULL
        )
        if not self.build():
            raise RuntimeError(f"the library cannot be built in {self.root}")
        self.unchanged = self.library()

    def library(self) -> bytes:
        return (self.root / "profiling_lab" / "_ops.abi3.so").read_bytes()

    def build(self) -> bool:
        command = ["cmake", "--build", "build/dev", "--target", "_ops"]
        environment = {**os.environ, "CCACHE_BASEDIR": str(self.root), "CCACHE_NOHASHDIR": "1"}
        done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, check=False)
        return done.returncode == 0

    def _compiles(self, source: str) -> bool:
        command = ["g++", "-std=c++20", "-w", "-fsyntax-only", "-Icsrc", source]
        return subprocess.run(command, cwd=self.root, capture_output=True, check=False).returncode == 0

    def outcome(self, mutant: Mutant | None, tests: list[str], timeout: float) -> tuple[str, str]:
        """The outcome, and the test that failed: killed, survived, timeout, invalid (it does not compile),
        same (the compiler makes the same library of it), unreached (no test runs the line) or error (pytest
        did not find the tests).
        """
        if mutant is None:
            return self._run(tests, timeout, True)
        test, source = next((v for k, v in _ALONE.items() if mutant.file.startswith(k)), ("", ""))
        if not tests and not test:
            return "unreached", ""
        file = self.root / mutant.file
        text = file.read_text()
        is_cpp = file.suffix != ".py"
        try:
            file.write_text(text[: mutant.start] + mutant.new + text[mutant.end :])
            if test and (found := self._run([test], timeout, False))[0] != "survived":
                return found if self._compiles(source) else ("invalid", "")
            if is_cpp and not self.build():
                return "invalid", ""
            if is_cpp and self.library() == self.unchanged:
                return "same", ""
            return self._run(tests, timeout, False) if tests else ("survived", "")
        finally:
            file.write_text(text)

    def _run(self, tests: list[str], timeout: float, may_cache: bool) -> tuple[str, str]:
        receive, send = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(target=_test, args=(str(self.root), tests, may_cache, send))
        process.start()
        send.close()
        process.join(timeout)
        ended = not process.is_alive()
        if not ended:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.join()
        failed = ""
        with suppress(EOFError):
            while receive.poll():
                failed = receive.recv()
        if not ended:
            return "timeout", ""
        if process.exitcode == 0:
            return "survived", ""
        is_lost = not failed and process.exitcode in (3, 4, 5)  # of pytest itself, or a test is not there
        return "error" if is_lost or failed == _OTHER_TREE else "killed", failed or f"exit {process.exitcode}"


class _Reporter:
    def __init__(self, send: Any) -> None:
        self.send = send

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.send.send(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.send.send(f"import of {report.nodeid}")


def _test(root: str, tests: list[str], may_cache: bool, send: Any) -> None:
    import pytest

    # Bytecode is found by size and whole seconds of the source's time, which a mutant may share.
    sys.dont_write_bytecode = not may_cache
    os.environ["PYTHONDONTWRITEBYTECODE"] = "" if may_cache else "1"

    os.setsid()
    with open(_NOTHING, "r+") as nothing:
        for stream in (0, 1, 2):
            os.dup2(nothing.fileno(), stream)
    os.chdir(root)
    sys.path.insert(0, root)
    os.environ["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    options = ["-q", "-x", "-p", "no:cacheprovider"]
    status = int(pytest.main([*options, *tests], plugins=[_Reporter(send)]))
    package = sys.modules.get("profiling_lab")
    if package is not None and not str(package.__file__).startswith(root + os.sep):
        send.send(_OTHER_TREE)
        status = 1
    send.close()
    os._exit(status)
