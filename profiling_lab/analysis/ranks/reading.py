# SPDX-License-Identifier: Apache-2.0
"""One file of a job, read to a summary wherever that happens; and which files a folder holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from profiling_lab.analysis.ranks.options import Options
from profiling_lab.analysis.ranks.summary import RankSummary, summarize
from profiling_lab.errors import LabError, NotEnoughDataError, UnreadableInputError, UsageError
from profiling_lab.records import dataclass, replace
from profiling_lab.trace import Trace
from profiling_lab.trace.formats import ENDINGS, is_trace_name


@dataclass(frozen=True, slots=True)
class Failure:
    """A file that could not be used."""

    path: str
    sentence: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class FileSummary:
    """The ranks of one file, or why there are none."""

    path: str
    ranks: tuple[RankSummary, ...]
    failure: Failure | None = None

    def each(self, change: Callable[[RankSummary], RankSummary]) -> FileSummary:
        return replace(self, ranks=tuple(map(change, self.ranks)))


def read_file(path: str, options: Options) -> FileSummary:
    """Summarize a file. Nothing that is wrong with it may end the others: it comes back as a Failure.

    Raises UsageError: the same options would be wrong for every file.
    """
    try:
        with Trace.open(path) as trace:
            part = trace.windowed(options.window) if options.window is not None else trace
            return FileSummary(path, summarize(part, options))
    except UsageError:
        raise
    except LabError as error:
        return FileSummary(path, (), Failure(path, str(error), error.exit_code))
    except Exception as error:
        sentence = f"{path} could not be analysed: {type(error).__name__}: {error}"
        return FileSummary(path, (), Failure(path, sentence, UnreadableInputError.exit_code))


PACKED = ".sqlite.gz"
"""of a folder read only where nothing else is there: most likely the same recordings once more"""


def files_of(paths: list[str]) -> list[str]:
    """The files meant: those given, and of a folder the traces in it, in the order of their numbers.

    Raises UnreadableInputError for a path that does not exist or is denied, NotEnoughDataError for a folder
    without traces.
    """
    out: list[str] = []
    for given in paths:
        try:
            out += _files_at(given)
        except OSError as error:
            raise UnreadableInputError(f"{given} cannot be read: {error.strerror}") from None
    return list(dict.fromkeys(out))


def _files_at(given: str) -> list[str]:
    path = Path(given)
    if not path.exists():
        raise UnreadableInputError(f"{given}: there is no such file or folder")
    if not path.is_dir() or is_trace_name(path):
        return [given]
    inside = [child for child in path.iterdir() if is_trace_name(child) and not _is_no_rank(child)]
    inside = [child for child in inside if not child.name.endswith(PACKED)] or inside
    if not inside:
        reports = sum(child.suffix == ".nsys-rep" for child in path.iterdir())
        convert = f": convert its {reports} nsys reports first (nsys export --type=sqlite)"
        convert = convert if reports else ""
        raise NotEnoughDataError(f"{given} holds no trace (expected {', '.join(ENDINGS)}){convert}")
    return [str(child) for child in sorted(inside, key=_natural)]


def _is_no_rank(path: Path) -> bool:
    """A memory snapshot of torch has no GPU operations, so it is not a rank of a job that lies next to it."""
    return path.name.endswith((".pickle", ".pickle.gz"))


def _natural(path: Path) -> list[tuple[int, str]]:
    """rank2 before rank10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]
