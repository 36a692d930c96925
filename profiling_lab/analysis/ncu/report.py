# SPDX-License-Identifier: Apache-2.0
"""Read a report of Nsight Compute: the CSV of `ncu --csv --page raw`, or an .ncu-rep where ncu is installed.

Lines that are not CSV (==PROF== ..., the program's own output) are skipped. Values come in base units: ns,
bytes, bytes per second, cycles per second. A metric that ncu printed as n/a is absent, not zero.
`contradictions` finds a report whose numbers cannot belong to one another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from profiling_lab.errors import UnreadableInputError
from profiling_lab.records import dataclass

DURATION = "gpu__time_duration.sum"
DEVICE_NAME = "device__attribute_display_name"
PERMISSION = "ERR_NVGPUCTRPERM"
EXPORT = "ncu --import REPORT.ncu-rep --csv --page raw > report.csv"
LIMIT_S = 300.0

_COLUMNS = ("Kernel Name", "Block Size", "Grid Size")
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_TIMES_NS = {
    "ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6,
    "s": 1e9, "sec": 1e9, "second": 1e9,
}  # fmt: skip
_PER_SECOND = {time: 1e9 / ns for time, ns in _TIMES_NS.items()}
_NAME = re.compile(r"[A-Za-z_]\w*")


class ReportError(UnreadableInputError):
    """A report that cannot be used: one sentence."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One profiled launch of a kernel."""

    number: int
    """ncu's ID: the place in the report"""
    kernel: str
    """the name as ncu prints it, with template arguments and parameters"""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    process: str
    device: str
    """the name of the GPU; without the metric device__attribute_display_name its compute capability"""
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def function(self) -> str:
        """The kernel's name alone: `copy_rows` of `void lab::copy_rows<int, 4>(const int *, int *)`."""
        return function_name(self.kernel)

    @property
    def blocks(self) -> int:
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """The threads of one block."""
        return math.prod(self.block)

    @property
    def duration_ns(self) -> float:
        return self.value(DURATION)

    def has(self, *names: str) -> bool:
        return all(name in self.metrics for name in names)

    def value(self, name: str) -> float:
        """A metric in base units. Raises ReportError if the report does not have it."""
        try:
            return self.metrics[name]
        except KeyError:
            raise ReportError(
                f"launch {self.number} ({self.function}) has no metric {name}: profile with --metrics {name}"
            ) from None

    def total(self, *names: str) -> float:
        """The sum of several metrics."""
        return sum(self.value(name) for name in names)


@dataclass(frozen=True, slots=True)
class Report:
    """All launches of a report, in its order."""

    launches: tuple[Launch, ...]
    source: str

    def of(self, function: str) -> tuple[Launch, ...]:
        """The launches of one kernel, by its name without parameters."""
        return tuple(launch for launch in self.launches if launch.function == function)

    def last(self, function: str) -> Launch:
        """The last launch of a kernel. Raises ReportError if there is none."""
        found = self.of(function)
        if not found:
            there = ", ".join(dict.fromkeys(launch.function for launch in self.launches))
            raise ReportError(f"{self.source} has no launch of {function}; it has {there}")
        return found[-1]


def read(path: Path) -> Report:
    """The report in `path`. Raises ReportError."""
    if not path.is_file():
        raise ReportError(f"there is no report {path.name}")
    if path.suffix == ".ncu-rep":
        return parse(_exported(path), path.name)
    try:
        text = path.read_text(encoding="utf-8-sig", errors="strict")
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{path.name} is no CSV of ncu ({error}): {EXPORT}, or give its .ncu-rep") from None
    return parse(text, path.name)


def _exported(path: Path) -> str:
    import shutil
    import subprocess

    ncu = shutil.which("ncu")
    if ncu is None:
        raise ReportError(f"{path.name} needs ncu to be read, and ncu is not on the PATH: {EXPORT}")
    command = [ncu, "--import", str(path), "--csv", "--page", "raw", "--print-units", "base"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReportError(f"ncu could not read {path.name}: {error}") from None
    if done.returncode:
        last = ((done.stdout + done.stderr).strip().splitlines() or ["no message"])[-1]
        raise ReportError(f"ncu could not read {path.name}: {last}")
    return done.stdout


def parse(text: str, source: str = "the report") -> Report:
    """A report from the text of its CSV. Raises ReportError."""
    import csv
    import io

    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if all(f'"{name}"' in line for name in _COLUMNS)), None)
    if start is None:
        raise ReportError(
            _refusal(lines)
            or f"{source} has no table of ncu with the columns {', '.join(_COLUMNS)}: {EXPORT} makes one"
        )
    table = list(csv.reader(io.StringIO("\n".join(line for line in lines[start:] if line.startswith('"')))))
    header = table[0]
    rows = [row for row in table[1:] if len(row) == len(header)]
    number = header.index("ID") if "ID" in header else None
    try:
        if "Metric Name" in header:
            launches = _long(header, rows)
        else:
            is_unit_row = bool(rows) and (number is not None and not rows[0][number])
            units = rows[0] if is_unit_row else [""] * len(header)
            launches = [_launch(header, units, row) for row in rows[is_unit_row:]]
    except (ValueError, KeyError, IndexError) as error:
        raise ReportError(f"{source} is damaged: {error}") from None
    if not launches:
        raise ReportError(f"{source} has no launch: ncu has profiled no kernel, or the table was cut off")
    return Report(tuple(launches), source)


def _refusal(lines: Sequence[str]) -> str:
    if any(PERMISSION in line for line in lines):
        return (
            f"ncu was not allowed to read the hardware counters ({PERMISSION}): `profiling-lab doctor` "
            "says how to allow it"
        )
    return ""


def _launch(header: Sequence[str], units: Sequence[str], row: Sequence[str]) -> Launch:
    cells = dict(zip(header, row, strict=True))
    metrics = {}
    for name, unit, text in zip(header, units, row, strict=True):
        value = number(text) if "__" in name else None
        if value is not None:
            metrics[name] = value * scale(unit)
    return _made(cells, metrics, cells.get(DEVICE_NAME, ""))


def _long(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[Launch]:
    """One row for each metric: what ncu prints without `--page raw`."""
    every: dict[tuple[str, str], tuple[Mapping[str, str], dict[str, float], dict[str, str]]] = {}
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        key = cells.get("Process ID", ""), cells["ID"]
        _, metrics, texts = every.setdefault(key, (cells, {}, {}))
        name, text = cells["Metric Name"], cells["Metric Value"]
        value = number(text) if "__" in name else None
        if value is not None:
            metrics[name] = value * scale(cells["Metric Unit"])
        texts[name] = text
    return [_made(cells, metrics, texts.get(DEVICE_NAME, "")) for cells, metrics, texts in every.values()]


def _made(cells: Mapping[str, str], metrics: dict[str, float], device: str) -> Launch:
    return Launch(
        number=int(cells["ID"]),
        kernel=cells["Kernel Name"],
        grid=_three(cells["Grid Size"]),
        block=_three(cells["Block Size"]),
        process=cells.get("Process Name", ""),
        device=device or f"compute capability {cells.get('CC', 'unknown')}",
        metrics=metrics,
    )


def _three(text: str) -> tuple[int, int, int]:
    sizes = [int(each) for each in re.findall(r"\d+", text)]
    if len(sizes) != 3 or min(sizes) < 1:
        raise ValueError(f"{text!r} is no size of a grid or block")
    return sizes[0], sizes[1], sizes[2]


def number(text: str) -> float | None:
    """A number as ncu prints it, with commas between thousands; None for n/a, nan and text."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def scale(unit: str) -> float:
    """The factor from a unit of ncu to the base unit: ns, bytes, anything per second."""
    head, _, tail = unit.lower().partition("/")
    factor = _TIMES_NS.get(head, 1.0) if not tail else 1.0
    if match := re.fullmatch(r"([kmgt]?)(byte|hz)", head):
        factor = _PREFIXES[match[1]]
    return factor * _PER_SECOND.get(tail, 1.0)


def function_name(kernel: str) -> str:
    """The name of a kernel without namespace, template arguments and parameters."""
    text = kernel.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    depth, head = 0, []
    for letter in text:
        depth += letter == "<"
        if depth == 0:
            if letter == "(":
                break
            head.append(letter)
        depth -= letter == ">"
    names = _NAME.findall("".join(head))
    return names[-1] if names else kernel
