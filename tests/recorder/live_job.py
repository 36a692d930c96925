# SPDX-License-Identifier: Apache-2.0
"""A job under `profiling-lab record --dormant`, whose steps end when a test says so, and its attaches."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from package_root import PACKAGE_ROOT

HERE = Path(__file__).resolve().parent
SAYS = "profiling-lab: "

# Runs what a line of its standard input says, and answers when that is done.
SCRIPT = """
import os, sys, time, profiling_lab
from fake_driver import Fake
fake = Fake()
number = 0
def steps(count):
    global number
    for _ in range(count):
        fake.kernel(f"step{number}")
        number += 1
        profiling_lab.step()
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
print("the end")
"""


class LiveJob:
    """The job, and commands run next to it. Leave it with close()."""

    def __init__(
        self, folder: Path, library: Path | None, script: str = SCRIPT, *options: str, **env: str
    ) -> None:
        self.folder = folder
        self.sockets = Path(env.get("PROFILING_LAB_SOCKETS", folder / "sockets"))
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "NVTX_INJECTION64_PATH"},
            "PYTHONPATH": f"{PACKAGE_ROOT}{os.pathsep}{HERE}",
            **({"PROFILING_LAB_CUPTI": str(library)} if library else {}),
            "PROFILING_LAB_SOCKETS": str(self.sockets),
            **env,
        }
        (folder / "train.py").write_text(script)
        self._commands: list[subprocess.Popen[str]] = []
        self.job = self.start("record", "--dormant", *options, "train.py", stdin=subprocess.PIPE)
        assert self.job.stdout is not None
        assert self.job.stdout.readline() == "ready\n", self.job.communicate()

    @property
    def pid(self) -> int:
        return self.job.pid

    @property
    def socket(self) -> Path:
        return self.sockets / f"{self.pid}.sock"

    def start(self, *arguments: str, cwd: Path | None = None, **options: Any) -> subprocess.Popen[str]:
        command = subprocess.Popen(
            [sys.executable, "-m", "profiling_lab", *arguments],
            cwd=cwd or self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        self._commands.append(command)
        return command

    def command(self, *arguments: str, **options: Any) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of a command that ends by itself."""
        started = self.start(*arguments, **options)
        out, err = started.communicate(timeout=600)
        return started.returncode, out, err

    def attach(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """An attach whose window the process has begun."""
        started = self.start("attach", str(self.pid), *arguments, **options)
        assert started.stderr is not None
        said = started.stderr.readline()
        assert "attached to process" in said, said + started.stderr.read()
        return started

    def finish(self, command: subprocess.Popen[str]) -> tuple[int, str]:
        """Exit code and what else it says."""
        _, err = command.communicate(timeout=600)
        return command.returncode, err

    def do(self, line: str) -> None:
        """Have the job run a line, and wait for it."""
        assert self.job.stdin is not None and self.job.stdout is not None
        self.job.stdin.write(line + "\n")
        self.job.stdin.flush()
        answer = self.job.stdout.readline()
        assert answer == "done\n", answer + self.end()[2]

    def end(self) -> tuple[int, str, str]:
        """Let the job end. Its exit code and what it says at last."""
        out, err = self.job.communicate(timeout=600)
        return self.job.returncode, out, err

    def close(self) -> None:
        for command in self._commands:
            if command.poll() is None:
                command.kill()
            command.wait(timeout=600)
            for pipe in (command.stdin, command.stdout, command.stderr):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
