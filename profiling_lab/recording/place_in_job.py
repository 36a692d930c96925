# SPDX-License-Identifier: Apache-2.0
"""Which rank of a job this process is, as launchers tell it in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

# A rank and how many there are. torchrun's names first: it may run within one task of any other launcher.
# SLURM's last: a batch script gives its own task's number, 0, to everything that mpirun starts below it.
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
class Place:
    """What is known of this process's place in its job; None: not told."""

    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_size: int | None = None

    @property
    def number(self) -> int | None:
        """What tells this process from the others of its job: its rank, else its local rank.

        None where it is the only one.
        """
        if self.rank is not None:
            return None if self.world_size == 1 else self.rank
        return None if self.local_size == 1 else self.local_rank

    def facts(self) -> dict[str, str]:
        """`rank` and `world_size`, as a recording notes them."""
        known = {"rank": self.rank, "world_size": self.world_size}
        return {name: str(value) for name, value in known.items() if value is not None}


def place_in_job(environment: Mapping[str, str] = os.environ) -> Place:
    """The place that the environment tells. A SLURM or MPI job of one process is no job of ranks."""
    rank, world_size = _first(_RANKS, environment)
    local_rank, local_size = _first(_LOCAL_RANKS, environment)
    return Place(rank, world_size, local_rank, local_size)


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
