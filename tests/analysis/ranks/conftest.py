# SPDX-License-Identifier: Apache-2.0
"""A job of 64 ranks, written and read once for all tests that ask for it."""

from __future__ import annotations

import pytest
from job_builder import Job

from profiling_lab.analysis.ranks import JobResult, LocalPool, ranks

RANKS = 64


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A job of 64 ranks: one computes longer, clocks are apart, a collective is missing."""
    job = Job(ranks=RANKS, steps=3)
    job.slow_compute[41] = 1_500_000
    job.clock_error.update({rank: 1_000_000 * rank for rank in range(RANKS)})
    job.lacks = {(7, 1, 0)}
    return list(map(str, job.write(tmp_path_factory.mktemp("many"))))


@pytest.fixture(scope="session")
def serial(many: list[str]) -> JobResult:
    return ranks(many, pool=LocalPool(1))
