# SPDX-License-Identifier: Apache-2.0
"""The rank of this process in its job, from the environment variables of launchers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

# Rank and world size. torchrun's names first: it may run within a task of any other launcher. SLURM's last: a
# batch script passes its own task number, 0, to everything that mpirun starts.
_RANKS = (
    ("RANK", ("WORLD_SIZE",)),
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    ("PMI_RANK", ("PMI_SIZE",)),
    ("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")),
)
_LOCAL_RANKS = (
    ("LOCAL_RANK", ("LOCAL_WORLD_SIZE",)),
    ("OMPI_COMM_WORLD_LOCAL_RANK", ("OMPI_COMM_WORLD_LOCAL_SIZE",)),
    ("MPI_LOCALRANKID", ("MPI_LOCALNRANKS",)),
    ("SLURM_LOCALID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")),
)


@dataclass(frozen=True, slots=True)
class RankInJob:
    """The rank of this process and the size of its job; None: unknown."""

    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_size: int | None = None

    @property
    def number(self) -> int | None:
        """The number that identifies this process in its job: its rank, else its local rank.

        None if it is the only process.
        """
        if self.rank is not None:
            return None if self.world_size == 1 else self.rank
        return None if self.local_size == 1 else self.local_rank

    def facts(self) -> dict[str, str]:
        """`rank` and `world_size` for the metadata of a recording."""
        known = {"rank": self.rank, "world_size": self.world_size}
        return {name: str(value) for name, value in known.items() if value is not None}


def rank_in_job(environment: Mapping[str, str] = os.environ) -> RankInJob:
    """The rank from the environment. A SLURM or MPI job of one process does not count as a job of ranks."""
    rank, world_size = _first(_RANKS, environment)
    local_rank, local_size = _first(_LOCAL_RANKS, environment)
    return RankInJob(rank, world_size, local_rank, local_size)


def _first(
    names: tuple[tuple[str, tuple[str, ...]], ...], environment: Mapping[str, str]
) -> tuple[int | None, int | None]:
    for number_name, size_names in names:
        number = _number(environment, number_name)
        if number is None:
            continue
        sizes = (_number(environment, name) for name in size_names)
        size = next((value for value in sizes if value is not None), None)
        if size == 1 and number_name not in ("RANK", "LOCAL_RANK"):
            continue
        return number, size
    return None, None


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None
