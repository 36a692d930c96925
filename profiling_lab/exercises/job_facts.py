# SPDX-License-Identifier: Apache-2.0
"""What the recordings of a job say, one file per rank: the numbers that exercises on several GPUs ask for.

Times are per step, as `ranks` and `collectives` show them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from profiling_lab.analysis.collectives import CollectivesResult, collectives
from profiling_lab.analysis.ranks import JobResult, LocalPool, ranks
from profiling_lab.analysis.ranks.reading import files_of
from profiling_lab.analysis.ranks.tables import CollectiveRow
from profiling_lab.analysis.ranks.totals import RankRow
from profiling_lab.errors import LabError, NotEnoughDataError, UnreadableInputError
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.exercise import GradedCheck, failed, passed

NEAR_LINES = 8


def measurement(path: Path, program: str) -> dict[str, Any]:
    """What the exercise's program wrote. Raises UnreadableInputError, with a sentence for the learner."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnreadableInputError(
            f"cannot read {path.name} ({error.strerror}): `profiling-lab exercise profile` makes it"
        ) from None
    except ValueError:
        raise UnreadableInputError(f"{path.name} is not JSON") from None
    if not isinstance(found, dict):
        raise UnreadableInputError(f"{path.name} is not what {program} writes")
    return found


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The ranks of one job, compared."""

    path: Path
    job: JobResult
    collectives: CollectivesResult
    """by line"""

    @property
    def step_ns(self) -> int:
        return self.job.step_ns

    def rank(self, number: int) -> RankRow:
        """Raises NotEnoughDataError if it was not recorded."""
        for row in self.job.rows:
            if row.rank == number:
                return row
        raise NotEnoughDataError(f"{self.path} has no recording of rank {number}")

    def kind(self, name: str) -> tuple[CollectiveRow, ...]:
        """The collectives of this kind, such as "AllReduce"."""
        return tuple(row for row in self.job.collectives if row.series.kind == name)

    def per_step(self, kind: str) -> float:
        """How many of a kind each rank makes in a step."""
        return sum(row.occurrences for row in self.kind(kind)) / max(self.job.common_steps, 1)

    def message_bytes(self, kind: str) -> float:
        """The mean message of a kind. Raises NotEnoughDataError if the recordings have no sizes."""
        sized = [(row.occurrences, row.size_bytes) for row in self.kind(kind) if row.size_bytes]
        if not sized:
            raise NotEnoughDataError(f"{self.path} has no {kind} with the size of its message")
        return sum(count * size for count, size in sized) / sum(count for count, _ in sized)

    def line_of(self, kind: str) -> tuple[str, int] | None:
        """The file and the line that launched most of the time of a kind; None where no stack says it."""
        places = [
            place for row in self.collectives.rows if row.kind == kind for place in row.places if place.frame
        ]
        most = max(places, key=lambda place: place.ns, default=None)
        if most is None or most.frame is None:
            return None
        return PurePath(most.frame.file).name, most.frame.line


def job_facts(path: Path) -> JobFacts:
    """Of a folder with a file for each rank, or of one file with all. Raises LabError."""
    files = files_of([str(path)])
    one_process = LocalPool(1)
    return JobFacts(path, ranks(files, pool=one_process), collectives(files, pool=one_process))


def is_ours(path: Path, recorded: Path) -> bool:
    """Whether recordings are those that came with the exercise, under whatever name."""
    try:
        return _contents([path]) == _contents([recorded])
    except (LabError, OSError):
        return False


def _contents(paths: Sequence[Path]) -> set[bytes]:
    return {Path(name).read_bytes() for path in paths for name in files_of([str(path)])}


def line_check(
    name: str, answers: Answers, right: tuple[str, int], key: str = "finding", advice: str = ""
) -> GradedCheck:
    """Grades `file` and `line` of a table of answer.toml."""
    file, line = answers.text(f"{key}.file"), answers.integer(f"{key}.line")
    if file is None or line is None:
        return failed(name, f"not answered yet: [{key}] file and line{advice and f', {advice}'}")
    if (PurePath(file).name, line) == right:
        return passed(name, f"{right[0]} line {line}")
    if PurePath(file).name != right[0]:
        return failed(name, f"it is not in {file}")
    if abs(line - right[1]) <= NEAR_LINES:
        return failed(name, "close, but the table shows the executing line: use that one")
    return failed(name, f"another line of {right[0]}{advice and f': {advice}'}")
