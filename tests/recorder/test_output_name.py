# SPDX-License-Identifier: Apache-2.0
"""The name that a recording gets: braces, ranks of every launcher, names that are taken."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from profiling_lab.errors import UsageError
from profiling_lab.recording import output_name
from profiling_lab.recording.rank_in_job import RankInJob, rank_in_job

LAUNCHERS = {
    "torchrun": ({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, RankInJob(5, 8, 1), 5),
    "torchrun, one process": ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}, RankInJob(0, 1, 0), None),
    "size unknown": ({"RANK": "1"}, RankInJob(1), 1),
    "srun": (
        {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4"},
        RankInJob(3, 4, 1, 4),
        3,
    ),
    "srun, one task": ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1"}, RankInJob(), None),
    "a shell of one task in a large job": (
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"},
        RankInJob(),
        None,
    ),
    "mpirun in a batch job": (
        {
            "SLURM_PROCID": "0",
            "SLURM_NTASKS": "4",
            "OMPI_COMM_WORLD_RANK": "2",
            "OMPI_COMM_WORLD_SIZE": "4",
            "OMPI_COMM_WORLD_LOCAL_RANK": "2",
        },
        RankInJob(2, 4, 2),
        2,
    ),
    "torchrun in a task of SLURM": (
        {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "RANK": "7", "WORLD_SIZE": "8"},
        RankInJob(7, 8),
        7,
    ),
    "MPICH": ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"}, RankInJob(1, 2, 0), 1),
    "a local rank alone": ({"LOCAL_RANK": "3"}, RankInJob(local_rank=3), 3),
    "no number": ({"RANK": "first", "SLURM_PROCID": ""}, RankInJob(), None),
    "no job": ({}, RankInJob(), None),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_gives_the_rank(launcher: str) -> None:
    environment, place, number = LAUNCHERS[launcher]
    assert rank_in_job(environment) == place
    assert place.number == number


def test_facts_are_what_is_known() -> None:
    assert RankInJob(1, 2, 0).facts() == {"rank": "1", "world_size": "2"}
    assert RankInJob(3).facts() == {"rank": "3"}
    assert RankInJob(local_rank=3).facts() == {}


def test_the_rank_is_added_unless_the_name_differs_per_process() -> None:
    second = RankInJob(1, 2, 1)
    assert output_name.expand("runs/run.sqlite", second) == Path("runs/run.rank1.sqlite")
    assert output_name.expand("run", second) == Path("run.rank1")
    for named in ("run.rank1.sqlite", "rank_01.sqlite", "run-rank-1"):  # by the program, or by the shell
        assert output_name.expand(named, second) == Path(named)
    for other in ("rank0", "rank10", "frank"):
        assert output_name.expand(f"{other}.sqlite", second) == Path(f"{other}.rank1.sqlite")
    assert output_name.expand("run-{rank}.sqlite", second) == Path("run-1.sqlite")
    assert output_name.expand("{host}-{local_rank}.sqlite", second).name == f"{socket.gethostname()}-1.sqlite"
    assert output_name.expand("{pid}.sqlite", second) == Path(f"{os.getpid()}.sqlite")
    assert output_name.expand("{host}.sqlite", second) == Path(f"{socket.gethostname()}.rank1.sqlite")
    assert output_name.expand("run.sqlite", RankInJob()) == Path("run.sqlite")
    assert output_name.expand("run-{rank}.sqlite", RankInJob()) == Path("run-0.sqlite")
    assert re.fullmatch(r"\d{8}-\d{6}\.sqlite", str(output_name.expand("{date}.sqlite", RankInJob())))
    assert output_name.expand("{date}.sqlite", RankInJob(), "today") == Path("today.sqlite")


@pytest.mark.parametrize("name", ["{step}", "{}", "{rank:03d}", "{RANK}", "{{rank}}/{what}"])
def test_unknown_braces_are_an_error(name: str) -> None:
    with pytest.raises(UsageError, match=r"is unknown; the output name may contain \{rank\}"):
        output_name.expand(f"{name}.sqlite", RankInJob())


def test_a_lone_brace_is_a_character() -> None:
    assert output_name.expand("a{b.sqlite", RankInJob()) == Path("a{b.sqlite")


def test_a_taken_name_is_refused_alone_and_replaced_in_a_job(tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    template = str(tmp_path / "run.sqlite")
    (tmp_path / "run.sqlite").touch()
    (tmp_path / "run.rank1.sqlite").touch()
    (tmp_path / "run.rank1-2.sqlite.spool").touch()  # a recording that was killed, or still runs
    assert output_name.in_this_process(template, overwrite=False) == (tmp_path / "run.sqlite", "")
    monkeypatch.setenv("RANK", "1")
    path, note = output_name.in_this_process(template, overwrite=False)
    assert path == tmp_path / "run.rank1-3.sqlite"
    assert note == f"{tmp_path}/run.rank1.sqlite exists already, so rank 1 records into {path}"
    path, note = output_name.in_this_process(template, overwrite=True)
    assert (path.name, note) == ("run.rank1.sqlite", "")
