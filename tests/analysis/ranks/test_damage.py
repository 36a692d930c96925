# SPDX-License-Identifier: Apache-2.0
"""Recordings with wrong values: an answer or a sentence, never an exception of ours."""

from __future__ import annotations

import io
import random
import shutil
from pathlib import Path

import pytest
from damage import put_wild_values
from job_builder import Job

from profiling_lab.analysis.ranks import LocalPool, ranks
from profiling_lab.errors import LabError
from profiling_lab.report.ranks.ranks import ranks_report
from profiling_lab.report.table import write


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    job = Job(ranks=3, steps=3)
    job.slow_compute[1] = 500_000
    return job.write(tmp_path_factory.mktemp("whole"), facts=True)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_jobs(whole: list[Path], tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    paths = [Path(shutil.copy(path, tmp_path)) for path in whole]
    for path in paths:
        if chance.random() < 0.5:
            put_wild_values(path, chance, chance.randint(1, 6))
    try:
        result = ranks([str(path) for path in paths], pool=LocalPool(1))
    except LabError as error:
        assert "could not be analysed" not in str(error)
        return
    for failure in result.failures:
        assert "could not be analysed" not in failure.sentence
    for by in ("rank", "collective", "step", "line", "path"):
        for form in ("table", "json"):
            write(ranks_report(result, by), form, io.StringIO())  # type: ignore[arg-type]
