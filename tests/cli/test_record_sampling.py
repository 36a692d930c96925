# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab record` samples Python unless it is told not to."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from cli.script_runs import record, write
from conftest import REPO


def meta(path: Path) -> dict[str, str]:
    with sqlite3.connect(path) as connection:
        return dict(connection.execute("SELECT name, value FROM PYREC_META"))


SAMPLED = """
    import sys, threading, time
    sys.path.append({tests!r})
    from fake_driver import Fake
    from profiling_lab import _recorder
    fake = Fake()
    fake.kernel("first")  # samples begin with the first call of CUDA
    def moments(): return int(_recorder.status().get("sample_moments", 0))
    def train():
        if {wanted}:
            deadline = time.monotonic() + 600
            while moments() < 5: assert time.monotonic() < deadline
        fake.kernel("last")
    train()
"""


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        ((), "200"),
        (("--sample-python",), "1000"),
        (("--sample-hz", "50"), "50"),
        (("--no-samples",), "0"),
        (("--no-stacks",), "0"),
    ],
)
def test_python_is_sampled_unless_not_wanted(
    options: tuple[str, ...], rate: str, tmp_path: Path, fake_cupti: Path
) -> None:
    tests = str(REPO / "tests" / "recorder")
    write(tmp_path, SAMPLED.format(tests=tests, wanted=rate != "0"))
    recorded = record(tmp_path, "-o", "run.sqlite", *options, "script.py", cupti=str(fake_cupti))
    assert recorded.code == 0 and recorded.err == "", recorded.err
    assert meta(tmp_path / "run.sqlite")["samples_per_second"] == rate
    with sqlite3.connect(tmp_path / "run.sqlite") as connection:
        texts = connection.execute(
            """SELECT value FROM StringIds WHERE value LIKE '{"Python Periodic Sampling"%'"""
        ).fetchall()
        files = {value for (value,) in connection.execute("SELECT value FROM StringIds")}
    assert bool(texts) == (rate != "0")
    assert not any(file.endswith("profiling_lab/cli/record.py") for file in files), (
        "what we do is not sampled"
    )


def test_collections_of_our_own_are_not_the_programs(tmp_path: Path, fake_cupti: Path) -> None:
    """The program makes the next collections long and frequent; they come when it has ended."""
    tests = str(REPO / "tests" / "recorder")
    many = """
    import gc
    left = iter(range(200))
    def slowly(phase, info):
        time.sleep(0.0015)
        if next(left, None) is None: gc.callbacks.remove(slowly); gc.set_threshold(700)
    gc.callbacks.append(slowly)
    gc.set_threshold(1)
    """
    write(tmp_path, SAMPLED.format(tests=tests, wanted=True) + many)
    recorded = record(tmp_path, "-o", "run.sqlite", "script.py", cupti=str(fake_cupti))
    assert recorded.code == 0 and recorded.err == "", recorded.err
    with sqlite3.connect(tmp_path / "run.sqlite") as connection:
        files = {value for (value,) in connection.execute("SELECT value FROM StringIds")}
    assert any("script.py" in file for file in files)
    assert not {file for file in files if file.endswith("profiling_lab/cli/record.py")}


def test_samples_that_contradict_each_other(tmp_path: Path) -> None:
    write(tmp_path, "print('never')")
    recorded = record(tmp_path, "--no-samples", "--sample-hz", "9", "script.py")
    assert recorded.code == 2 and recorded.out == ""
    assert "--no-samples cannot be combined with --sample-python or --sample-hz" in recorded.err
    recorded = record(tmp_path, "--no-samples", "--sample-hz", "0", "script.py")
    assert "a number of samples per second, not 0" in recorded.err
