# SPDX-License-Identifier: Apache-2.0
"""Start the programs of exercises on several ranks of this machine; for the scripts that learners run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def on_ranks(ranks: int) -> list[str]:
    """What stands between `python` and the program: torchrun's module with its options; nothing for one."""
    if ranks == 1:
        return []
    # Its store takes a port that is free at that moment; one that is looked for before may be taken by then.
    return ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]


def run(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run `python` with these arguments; returns what it prints. Ends this program if that one fails."""
    command = [sys.executable, *arguments]
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    # torchrun would set the number of threads, and say so.
    variables = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": paths, **(environment or {})}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def recorded(ranks: int, name: str, program: Sequence[str], steps: str, **environment: str) -> list[str]:
    """Record these steps of a program on several ranks; returns the names of the files, one per rank."""
    record = ["-m", "profiling_lab", "record", "--overwrite", "-o", f"{name}.sqlite", "--steps", steps]
    run([*record, *on_ranks(ranks), *program], environment)
    return [f"{name}.rank{rank}.sqlite" for rank in range(ranks)]
