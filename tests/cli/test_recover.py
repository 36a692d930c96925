# SPDX-License-Identifier: Apache-2.0
"""What a process that was killed had recorded is not lost."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from package_root import PACKAGE_ROOT

REPO = Path(__file__).resolve().parents[2]


def lab(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "profiling_lab", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, fake_cupti: Path) -> Path:
    """A folder in which a script launched 100 kernels and then killed itself."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "script.py").write_text(
        f"import os, signal, sys, time\nsys.path.append({str(REPO / 'tests' / 'recorder')!r})\n"
        "from fake_driver import Fake\nfake = Fake()\n"
        "for _ in range(100):\n    fake.kernel('_Z3addPf', ns=1000)\n"
        "time.sleep(2.5)  # longer than the recorder waits between two looks at CUPTI\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = lab(folder, "record", "-o", "run.sqlite", "script.py", PROFILING_LAB_CUPTI=str(fake_cupti))
    assert done.returncode == -9 and not (folder / "run.sqlite").exists()
    return folder


def test_launches_with_their_lines_are_recovered(killed: Path) -> None:
    done = lab(killed, "recover", "run.sqlite.spool", "--overwrite")
    assert done.returncode == 0, done.stderr
    assert "100 CUDA calls; wrote run.sqlite" in done.stderr
    with sqlite3.connect(killed / "run.sqlite") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        launches = "SELECT count(*) FROM PYREC_LAUNCH WHERE stackId > 0"
        assert connection.execute(launches).fetchone() == (100,)
        line = connection.execute(
            """SELECT DISTINCT f.line FROM PYREC_STACK s JOIN PYREC_FRAME f ON f.id = s.frameId
               JOIN StringIds t ON t.id = f.functionId WHERE t.value = '<module>'"""
        ).fetchall()
    assert (6,) in line
    assert (killed / "run.sqlite.spool").is_file(), "the spool is the only copy: it stays"


def test_refusals(killed: Path, tmp_path: Path) -> None:
    (tmp_path / "kept.sqlite").write_text("precious")
    spool = str(killed / "run.sqlite.spool")
    for arguments, code, sentence in (
        (("missing.spool",), 4, "there is no file missing.spool"),
        ((spool, "-o", "kept.sqlite"), 2, "kept.sqlite exists already"),
        ((spool, "-o", "nowhere/x.sqlite"), 2, "nowhere does not exist"),
        (("kept.sqlite",), 2, "ends in .spool"),
        (("kept.sqlite", "-o", "x.sqlite"), 4, "kept.sqlite"),
    ):
        done = lab(tmp_path, "recover", *arguments)
        assert done.returncode == code, done.stderr
        assert sentence in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "kept.sqlite").read_text() == "precious"
    assert not (tmp_path / "x.sqlite").exists()


def test_unfinished_recording_is_not_overwritten(killed: Path) -> None:
    (killed / "run.sqlite").unlink(missing_ok=True)
    refused = lab(killed, "record", "-o", "run.sqlite", "script.py")
    assert refused.returncode == 2
    assert "profiling-lab recover" in refused.stderr and "--overwrite" in refused.stderr
    assert (killed / "run.sqlite.spool").stat().st_size > 1000
