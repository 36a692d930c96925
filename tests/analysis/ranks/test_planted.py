# SPDX-License-Identifier: Apache-2.0
"""Jobs with a planted fault on a made cluster: the verdict names its rank, its line and its kind, and what
mending it would save is what the cluster takes without it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from made_traces import jobs
from made_traces.clock_rates import run_faster
from made_traces.cluster import Cluster, Conditions, Rank

from profiling_lab.analysis.ranks import JobResult, LocalPool, ranks

Program = Callable[[Rank], None]
FACTOR = 1.5
HEALTHY = Conditions()


def longer(which: int, factor: float) -> Callable[[int, int], float]:
    return lambda rank, step: factor if rank == which else 1.0


def any_length(rank: int, step: int) -> float:
    return random.Random(f"{rank} {step}").uniform(0.7, 1.3)


@dataclass(frozen=True)
class Planted:
    """A fault, and what the verdict must name. line: '' where no line is at fault."""

    program: Program
    ranks: int
    fault: Conditions
    rank: int | None
    cause: str
    line: str
    mended: Conditions = HEALTHY
    how: dict[str, Any] = field(default_factory=dict)


SLOW_HOSTS = {"dispatch_ns": 30_000}
EXTRA = {(1, jobs.EXTRA): (10, 2_800_000)}
FAULTS = {
    "forward": Planted(
        jobs.data_parallel, 4, Conditions(extra_kernels={(2, jobs.ATTENTION): (2, 350_000)}),
        2, "unequal work", jobs.ATTENTION,
    ),
    "backward": Planted(
        jobs.data_parallel, 4, Conditions(kernel_factor={(2, jobs.MLP): 1.5}), 2, "unequal work", jobs.MLP,
    ),
    "optimizer": Planted(
        jobs.data_parallel, 4, Conditions(extra_kernels={(3, jobs.OPTIMIZER): (60, 6_000)}),
        3, "unequal work", jobs.OPTIMIZER,
    ),
    "data loader": Planted(
        jobs.data_parallel, 4, Conditions(loader_ns={0: 4_000_000}), 0, "slow host", jobs.TO_DEVICE,
    ),
    "busy host": Planted(
        jobs.fully_sharded, 4, Conditions(host_factor={2: 1.6}), 2, "slow host", "", how=SLOW_HOSTS,
    ),
    "slower clock": Planted(
        jobs.data_parallel, 4, Conditions(gpu_factor={1: 1.25}), 1, "slow GPU", "",
    ),
    "slower clock, two ranks": Planted(
        jobs.tensor_parallel, 2, Conditions(gpu_factor={0: 1.15}), 0, "slow GPU", "",
    ),
    "longer sequences": Planted(
        jobs.data_parallel, 4, Conditions(length=longer(3, 1.6)), 3, "unequal work", "",
    ),
    "products between forward and backward": Planted(
        jobs.fully_sharded, 2, Conditions(extra_kernels=EXTRA), 1, "unequal work", jobs.EXTRA, how=SLOW_HOSTS,
    ),
    "the same, and the other rank's host is slow": Planted(
        jobs.fully_sharded, 2, Conditions(extra_kernels=EXTRA, host_factor={0: 3.0}),
        1, "unequal work", jobs.EXTRA, mended=Conditions(host_factor={0: 3.0}), how=SLOW_HOSTS,
    ),
    "kernels of one rank alone, hosts run ahead": Planted(
        jobs.unsynchronised, 4, Conditions(extra_kernels={(0, jobs.EXTRA): (5, 500_000)}),
        0, "unequal work", jobs.EXTRA,
    ),
    "slow link": Planted(jobs.data_parallel, 4, Conditions(link_factor=8), None, "", ""),
    "slow link in tensor parallel": Planted(
        jobs.tensor_parallel, 4, Conditions(link_factor=12), None, "", "",
    ),
    "pipeline": Planted(
        jobs.pipeline, 4, Conditions(kernel_factor={(2, jobs.MLP): 1.5}), 2, "unequal work", jobs.MLP,
    ),
    "pipeline with a slower clock": Planted(
        jobs.pipeline, 4, Conditions(gpu_factor={1: 1.3}), 1, "slow GPU", "",
    ),
    "host code": Planted(
        jobs.data_parallel, 2, Conditions(host_ns={(1, jobs.OUT): 1_500_000}), 1, "slow host", jobs.OUT,
        how={"samples": True},
    ),
    "a value is read": Planted(
        jobs.fully_sharded, 4, Conditions(waits_at=frozenset({(1, jobs.ATTENTION)})),
        1, "slow host", jobs.ATTENTION, how={"dispatch_ns": 12_000},
    ),
    "tensor parallel": Planted(
        jobs.tensor_parallel, 4, Conditions(kernel_factor={(2, jobs.ATTENTION): 1.5}),
        2, "unequal work", jobs.ATTENTION,
    ),
}  # fmt: skip


def made(case: Planted, conditions: Conditions) -> Cluster:
    return Cluster(case.ranks, case.program, conditions, **case.how).run(10)


def compared(cluster: Cluster, folder: Path) -> JobResult:
    return ranks(cluster.write(folder), pool=LocalPool(1))


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_named_and_its_cost_is_what_mending_wins(name: str, tmp_path: Path) -> None:
    case = FAULTS[name]
    cluster = made(case, case.fault)
    found = compared(cluster, tmp_path).verdict
    truth_ns = cluster.step_ns - made(case, case.mended).step_ns
    assert truth_ns > 0.05 * cluster.step_ns, "the fault matters"
    assert truth_ns / FACTOR < found.cost_ns < truth_ns * FACTOR
    assert found.rank == case.rank
    if case.rank is None:
        assert found.kind == "transfer" and found.blame is None
        return
    assert found.kind == "straggler" and found.blame is not None
    assert found.blame.cause == case.cause
    assert found.blame.line == (f"/app/{case.line}" if case.line else "")


HEALTHY_JOBS = {
    "jitter": (jobs.data_parallel, Conditions(jitter=0.03), {}),
    "hosts are the limit": (jobs.fully_sharded, Conditions(jitter=0.03), SLOW_HOSTS),
    "tensor parallel": (jobs.tensor_parallel, Conditions(jitter=0.03), {}),
    "pipeline": (jobs.pipeline, Conditions(jitter=0.03), {}),
    "sequences of any length": (jobs.data_parallel, Conditions(length=any_length), {}),
    "one slow step": (jobs.data_parallel, Conditions(slow_step=(5, 8_000_000)), {}),
}


@pytest.mark.parametrize("name", HEALTHY_JOBS)
def test_a_healthy_job_has_no_straggler(name: str, tmp_path: Path) -> None:
    program, conditions, how = HEALTHY_JOBS[name]
    found = compared(Cluster(4, program, conditions, **how).run(10), tmp_path).verdict  # type: ignore[arg-type]
    assert found.kind in ("balanced", "waiting") and found.rank is None and found.blame is None


def test_who_is_last_most_often_need_not_be_the_one(tmp_path: Path) -> None:
    """The other rank comes last to two thirds of the collectives: mending it as well is said second."""
    case = FAULTS["the same, and the other rank's host is slow"]
    result = compared(made(case, case.fault), tmp_path)
    assert (result.rows[0].late_frac or 0) > 0.6 > 0.4 > (result.rows[1].late_frac or 0)
    (second,) = result.verdict.also
    truth_ns = made(case, case.fault).step_ns - made(case, Conditions(extra_kernels=EXTRA)).step_ns
    assert (second.rank, second.cause) == (0, "slow host")
    assert truth_ns / FACTOR < second.gain_ns < truth_ns * FACTOR


def test_a_rank_behind_the_first_one_is_named(tmp_path: Path) -> None:
    """Mended alone it wins nothing, because the steps still wait for the first one."""
    more = {(2, jobs.ATTENTION): (2, 600_000)}
    behind = {(3, jobs.MLP): (2, 400_000)}
    cluster = Cluster(4, jobs.data_parallel, Conditions(extra_kernels=more | behind)).run(10)
    found = compared(cluster, tmp_path).verdict
    (second,) = found.also
    assert found.rank == 2 and (second.rank, second.line, second.behind) == (3, f"/app/{jobs.MLP}", 2)
    first_mended = Cluster(4, jobs.data_parallel, Conditions(extra_kernels=behind)).run(10)
    truth_ns = first_mended.step_ns - Cluster(4, jobs.data_parallel, HEALTHY).run(10).step_ns
    assert truth_ns / FACTOR < second.gain_ns < truth_ns * FACTOR


def test_without_samples_the_two_lines_around_host_code_are_named(tmp_path: Path) -> None:
    cluster = Cluster(2, jobs.data_parallel, Conditions(host_ns={(1, jobs.OUT): 1_500_000})).run()
    blame = compared(cluster, tmp_path).verdict.blame
    assert blame is not None
    assert blame.line == f"between /app/{jobs.ATTENTION} and /app/{jobs.OUT}" and blame.doing == "host code"


def test_the_path_is_the_step(tmp_path: Path) -> None:
    """What ranks and lines contribute sums to the step, and the planted line is the largest part."""
    case = FAULTS["products between forward and backward"]
    path = compared(made(case, case.fault), tmp_path).path
    assert path is not None and len(path.steps) == 8
    assert sum(share.path_ns for share in path.shares) == pytest.approx(path.step_ns, rel=0.01)
    first = path.shares[0]
    assert (first.rank, first.line) == (1, f"/app/{jobs.EXTRA}") and first.path_ns > 27_000_000


@pytest.mark.parametrize("clocks_ns", [(0,) * 8, (0, 400_000, -1_000_000_000, 3_000) * 2])
def test_clocks_do_not_matter(clocks_ns: tuple[int, ...], tmp_path: Path) -> None:
    case = FAULTS["forward"]
    cluster = Cluster(4, case.program, case.fault, clocks_ns=clocks_ns).run()
    blame = compared(cluster, tmp_path).verdict.blame
    assert blame is not None and (blame.rank, blame.line) == (2, f"/app/{jobs.ATTENTION}")


def test_rates_of_clocks_do_not_matter(tmp_path: Path) -> None:
    case = FAULTS["forward"]
    paths = Cluster(4, case.program, case.fault).run(40).write(tmp_path)
    for path, rate in zip(paths, (0.0, 6e-5, -4e-5, 2e-5), strict=True):
        run_faster(path, rate)
    found = ranks(paths, pool=LocalPool(1))
    assert found.clocks.rate == pytest.approx(1e-4, rel=0.1)
    blame = found.verdict.blame
    assert blame is not None and (blame.rank, blame.line) == (2, f"/app/{jobs.ATTENTION}")
    assert found.path is not None
    assert sum(share.path_ns for share in found.path.shares) == pytest.approx(found.path.step_ns, rel=0.01)
