# SPDX-License-Identifier: Apache-2.0
"""Programs that are recorded in a folder of their own, with the fake GPU.

A process uses it by importing `cupy`: a stub. That import is what a child of a recorded program waits for.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from package_root import PACKAGE_ROOT

HERE = Path(__file__).resolve().parent
PYTHON = sys.executable
TRAIN = """
import os, sys
import cupy
for n in range(2 + int(os.environ.get("RANK", "0"))):
    cupy.Fake().kernel("step")
"""


@dataclass
class Job:
    """A folder in which programs are recorded."""

    folder: Path
    library: Path
    environment: dict[str, str] = field(default_factory=dict)
    # TMPDIR of its programs, removed with the job. multiprocessing binds sockets there, whose paths must be
    # short: tmp_path is not.
    temporary: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="plab-", ignore_cleanup_errors=True)
    )

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        if text.startswith("#!"):
            path.chmod(0o755)

    def environ(self, **more: str) -> dict[str, str]:
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("NVTX_", "SLURM_", "RANK", "WORLD_"))
        }
        return {
            **kept,
            "PATH": f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(map(str, [PACKAGE_ROOT, HERE, self.folder / "stub"])),
            "PROFILING_LAB_CUPTI": str(self.library),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": self.temporary.name,
            **self.environment,
            **more,
        }

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environ(**more),
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
        )

    def record(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        done = self.run(PYTHON, "-W", "ignore", "-m", "profiling_lab", "record", *arguments, **more)
        assert not list(Path(self.temporary.name).glob("profiling-lab-*")), "the reports are left behind"
        return done

    def files(self) -> dict[str, int]:
        """Every recording with its kernels."""
        return {path.name: self.kernels(path) for path in self.folder.glob("*.sqlite*")}

    def kernels(self, path: Path) -> int:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
            assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            query = "SELECT count(*) FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
            if file.execute(query).fetchone() == (0,):
                return 0
            return int(file.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0])

    def meta(self, name: str) -> dict[str, str]:
        with closing(sqlite3.connect(self.folder / name)) as file:
            return dict(file.execute("SELECT name, value FROM PYREC_META"))


def prepare(folder: Path, library: Path) -> Job:
    """A job with train.py, which launches two kernels, and one more for each further rank."""
    job = Job(folder, library)
    job.write("stub/cupy.py", "from fake_driver import *\n")
    job.write("train.py", TRAIN)
    return job


def said(done: subprocess.CompletedProcess[str]) -> str:
    return "".join(line for line in done.stderr.splitlines(True) if line.startswith("profiling-lab: "))


def not_ours(done: subprocess.CompletedProcess[str]) -> str:
    return "".join(line for line in done.stderr.splitlines(True) if not line.startswith("profiling-lab: "))
