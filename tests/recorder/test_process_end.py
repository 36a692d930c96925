# SPDX-License-Identifier: Apache-2.0
"""A recording is written when its process ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def test_a_process_that_ends_may_import_pandas(run: Any, query: Any, tmp_path: Path) -> None:
    """For texts of more bytes than a column holds pyarrow imports pandas, where it is installed, and pandas
    what must not be imported for the first time at the end of a process.
    """
    (tmp_path / "pandas.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\n__version__ = '0.1'\nprint('imported')\n"
    )
    done = run(
        "from profiling_lab.recording.tables import arrow_columns; arrow_columns._MOST_BYTES = 0\n"
        "recorder = profiling_lab.recording.Recorder(OUT); recorder.start(); fake.kernel('a')"
    )
    assert "imported" in done.stdout and "could not" not in done.stderr
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(1,)]
