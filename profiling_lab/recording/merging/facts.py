# SPDX-License-Identifier: Apache-2.0
"""The metadata of recordings to merge: whether they belong to one job, and their common clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profiling_lab.errors import NotEnoughDataError, UnreadableInputError, UsageError
from profiling_lab.recording.tables.schema import NSYS_TABLES, PYREC_TABLES, column_names
from profiling_lab.trace.nsys import MAGIC
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.process_ids import pid_of

Facts = dict[str, str]
_SAME_BOOT_NS = 1_000_000_000
_MOST = ("seconds", "overhead_callback_ns", "overhead_exit_ns")  # the largest value of all recordings
_SUMS = frozenset(
    (
        "kernels",
        "copies",
        "sets",
        "syncs",
        "graph_launches",
        "records_unknown",
        "records_without_time",
        "starved_buffer_requests",
        "overhead_buffer_bytes",
        "dropped_records",
        "overhead_flush_ns",
        "overhead_flushes",
        "calls",
        "calls_with_stack",
        "stacks",
        "ranges",
        "nvtx_libraries",
        "dropped_calls",
        "dropped_bytes",
        "callback_errors",
        "spool_bytes",
        "windows",
        "sample_moments",
        "samples_late",
        "samples_lost",
        "overhead_sampling_ns",
        "overhead_callback_samples",
        "overhead_start_ns",
        "unreadable_bytes",
        "unreadable_places",
        "unwritten_records",
        "texts_cut",
        "stacks_cut",
        "stacks_lost",
    )
)
_OF_ONE_PROCESS = frozenset(("rank", "schedule", "steps_counted", "stopped_at_bytes"))


@dataclass(frozen=True, slots=True)
class Part:
    """One of the files to merge."""

    path: Path
    columns: dict[str, tuple[str, ...]]
    epoch_ns: int
    """the wall clock at the file's time zero"""
    monotonic_ns: int
    """the boot clock at the same moment"""
    duration_ns: int
    processes: tuple[int, ...]
    """global ids"""
    facts: dict[int, Facts]
    """the metadata of each process"""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def boot_ns(self) -> int:
        """The boot time of the machine, which is the same for all files of one machine."""
        return self.epoch_ns - self.monotonic_ns


def read_part(path: Path) -> Part:
    """Read the metadata of one file. Raises UnreadableInputError if it is not an SQLite file, UsageError for
    another kind of trace, NotEnoughDataError for a recording without a start time.
    """
    if not path.is_file():
        raise UnreadableInputError(f"there is no file {path}")
    with path.open("rb") as start:
        if start.read(len(MAGIC)) != MAGIC:
            raise UnreadableInputError(f"expected a recording, but {path} is not an SQLite file")
    file = SqliteFile(path)
    try:
        return _read(path, file)
    finally:
        file.close()


def _read(path: Path, file: SqliteFile) -> Part:
    columns = {table: file.columns(table) for table in file.tables if not table.startswith("sqlite_")}
    if "PYREC_META" not in columns or "PROCESSES" not in columns:
        raise UsageError(
            f"{path} was not recorded by profiling-lab; merge accepts only such recordings: nsys itself "
            "records the processes of a machine into one file"
        )
    for table, names in columns.items():
        if table.startswith("ENUM_"):
            continue
        known = column_names(table) if table in (*NSYS_TABLES, *PYREC_TABLES) else ()
        if not known or not set(names) <= set(known):
            what = f"column {table}.{min(set(names) - set(known))}" if known else f"table {table}"
            raise UsageError(f"{path} has a {what} that this version does not know and cannot merge")
    start = file.select("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": 0, "systemClockNs": 0})
    if not len(start["utcEpochNs"]) or start["utcEpochNs"][0] <= 0:
        raise NotEnoughDataError(f"{path} has no start time: its times cannot be aligned")
    processes = tuple(file.select("PROCESSES", {"globalPid": 0})["globalPid"].tolist())
    if not processes:
        raise NotEnoughDataError(f"{path} does not say which process it belongs to")
    duration = file.select("ANALYSIS_DETAILS", {"duration": 0})["duration"]
    return Part(
        path=path,
        columns=columns,
        epoch_ns=int(start["utcEpochNs"][0]),
        monotonic_ns=int(start["systemClockNs"][0]),
        duration_ns=int(duration.max()) if len(duration) else 0,
        processes=processes,
        facts=_facts(file, columns, processes, path.name),
    )


def _facts(
    file: SqliteFile, columns: dict[str, tuple[str, ...]], processes: tuple[int, ...], name: str
) -> dict[int, Facts]:
    if "PYREC_PROCESS" in columns:  # a merged file has metadata per process
        out: dict[int, Facts] = {process: {} for process in processes}
        rows = file.texts(
            "SELECT CAST(globalPid AS TEXT), CAST(name AS BLOB), CAST(IFNULL(value, '') AS BLOB) "
            "FROM PYREC_PROCESS"
        )
        for process, key, value in rows:
            out.setdefault(int(process), {})[key] = value
        return out
    query = "SELECT CAST(name AS BLOB), CAST(IFNULL(value, '') AS BLOB) FROM PYREC_META"
    pairs = {row[0]: row[1] for row in file.texts(query)}
    return {process: {**pairs, "file": name} for process in processes}


def check_one_job(parts: Sequence[Part]) -> None:
    """Raises NotEnoughDataError if the files cannot belong to one job."""
    seen: dict[tuple[int, int], Part] = {}
    ranks: dict[str, Part] = {}
    sizes: dict[str, Part] = {}
    for part in parts:
        for process in part.processes:
            if other := seen.get((process, part.epoch_ns)):
                raise NotEnoughDataError(f"{part.path} and {other.path} are the same recording")
            seen[process, part.epoch_ns] = part
        for facts in part.facts.values():
            if (rank := facts.get("rank")) is not None:
                if other := ranks.get(rank):
                    raise NotEnoughDataError(
                        f"{part.path} and {other.path} are both rank {rank}, so they belong to two jobs"
                    )
                ranks[rank] = part
            if (size := facts.get("world_size")) is not None:
                sizes.setdefault(size, part)
    if len(sizes) > 1:
        (a, one), (b, other) = list(sizes.items())[:2]
        raise NotEnoughDataError(f"{one.path} belongs to a job of {a} ranks, {other.path} to one of {b}")


def clock_facts(parts: Sequence[Part]) -> Facts:
    """How exactly the clocks of the files are aligned."""
    boots = [part.boot_ns for part in parts]
    apart = max(boots) - min(boots)
    if apart < _SAME_BOOT_NS:
        return {
            "clock_uncertainty_ns": str(apart),
            "clock_alignment": "all files come from one machine; its wall clock was adjusted by "
            f"{apart / 1e6:.3f} ms between their starts",
        }
    return {
        "clock_uncertainty_ns": "unknown",
        "clock_alignment": "the files come from several machines (or boots) and are aligned by wall clock: "
        "as "
        "exact as those clocks agree, often to some milliseconds; `ranks` measures it by collectives",
    }


def merged_facts(parts: Sequence[Part]) -> Facts:
    """The merged metadata. Values of a single process go to PYREC_PROCESS."""
    every = [facts for part in parts for facts in part.facts.values()]
    out: Facts = {}
    for name in sorted({name for facts in every for name in facts} - _OF_ONE_PROCESS - {"file"}):
        said = [(facts["file"], facts[name]) for facts in every if name in facts and "file" in facts]
        values = [value for _, value in said]
        if name in _SUMS and all(value.lstrip("-").isdecimal() for value in values):
            out[name] = str(sum(map(int, values)))
        elif name in _MOST:
            out[name] = max(values, key=float)
        elif len(set(values)) == 1 and (len(values) == len(every) or name != "finished"):
            out[name] = values[0]
        elif name == "finished":
            out[name] = "no"
        else:
            out[name] = "; ".join(f"{value or 'on'} ({file})" for file, value in said)
    return out | {"merged_recordings": str(len(parts))} | clock_facts(parts)


def new_pids(parts: Sequence[Part]) -> list[dict[int, int]]:
    """Per file the new pid of each process whose pid is already used by an earlier file."""
    out: list[dict[int, int]] = []
    taken: set[int] = set()
    every = {pid_of(process) for part in parts for process in part.processes}
    for part in parts:
        changed = {}
        for pid in map(pid_of, part.processes):
            if pid in taken:
                free = max(every | taken) + 1
                changed[pid] = free if free < 1 << 24 else min(set(range(1, 1 << 16)) - every - taken)
            taken.add(changed.get(pid, pid))
        out.append(changed)
    return out
