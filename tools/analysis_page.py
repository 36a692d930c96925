# SPDX-License-Identifier: Apache-2.0
"""Fill the pages in docs/analysis with what their commands really print: no example is typed by hand.

python tools/analysis_page.py            # runs every command of the pages and rewrites what it printed
python tools/analysis_page.py --check    # exit code 1 if a page is not what the commands print

A command is in a mark of its own above the block that it fills, with files that `examples` makes:

    <!-- prints: lines run.sqlite --limit 3 -->

Nothing is recorded for it: run.sqlite and nsys.sqlite are the H200 recordings that ship with the first
exercise, demo.sqlite is one of the demo with counted work, the job of four ranks is the one that the tests of
`ranks` make up, cpu.sqlite and energy.sqlite are made up too. ddp is a job on two H200, memory.sqlite,
mended.sqlite and failed.sqlite are small programs on one: all of them were recorded for the tests.
"""

from __future__ import annotations

import contextlib
import difflib
import gzip
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
PAGES = [*sorted((REPO / "docs" / "analysis").glob("*.md")), REPO / "docs" / "roofline.md"]
RECORDED = "exercises/e17_python_backtrace/recorded"
WIDTH = 140
_BLOCK = re.compile(r"<!-- prints: (?P<command>.+?) -->\n```text\n.*?\n?```\n", re.DOTALL)
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class _Terminal(io.StringIO):
    """Text is folded to the width of a terminal."""

    def isatty(self) -> bool:
        return True


def examples(folder: Path) -> None:
    """The files that the page's commands read."""
    import profiling_lab

    recorded = Path(profiling_lab.__file__).parent / RECORDED
    shutil.copy(recorded / "demo_h200.sqlite", folder / "run.sqlite")
    shutil.copy(recorded / "nsys_h200.sqlite", folder / "nsys.sqlite")
    roofline = REPO / "docs" / "roofline"
    (folder / "demo.sqlite").write_bytes(gzip.decompress((roofline / "demo_h200.sqlite.gz").read_bytes()))
    shutil.copy(roofline / "h200.json", folder)
    counters = REPO / "tests" / "data" / "counters_h200" / "copies_and_products.sqlite.gz"
    (folder / "counters.sqlite").write_bytes(gzip.decompress(counters.read_bytes()))
    sys.path.insert(0, str(REPO / "tests"))
    from builders import TraceBuilder
    from job_builder import Job
    from made_traces.energy import Phase, recording, simulate

    phases = [Phase(1, 650, 18_000_000), Phase(2, 350, 12_000_000, 2_000_000), Phase(3, 220, 9_000_000)]
    recording(simulate(phases, 60, 1)).write(folder / "energy.sqlite")

    loading = "/app/prepare.py:41 main > /app/prepare.py:23 read_batch"
    cpu = TraceBuilder().row("PYREC_META", name="samples_per_second", value="1000")
    for moment, stack in enumerate(
        [f"{loading} > /app/prepare.py:12 decode"] * 610 + [loading] * 248 + ["/app/prepare.py:44 main"] * 97
    ):
        cpu.sample(moment * 1_000_000, stack)
        cpu.sample(moment * 1_000_000, "/usr/lib/python3.12/threading.py:359 Condition.wait", thread=2)
    cpu.write(folder / "cpu.sqlite")

    job = Job(ranks=4, steps=6)
    job.slow_compute[3] = 2_000_000
    job.clock_error.update({1: 7_000_000, 2: -3_000_000})
    (folder / "job").mkdir()
    job.write(folder / "job", facts=True)
    for name, recorded in (
        ("memory", "list_of_activations"),
        ("mended", "eager"),
        ("failed", "out_of_memory"),
    ):
        packed = REPO / "tests" / "data" / "memory_h200" / f"{recorded}.sqlite.gz"
        (folder / f"{name}.sqlite").write_bytes(gzip.decompress(packed.read_bytes()))
    (folder / "ddp").mkdir()
    for packed in (REPO / "tests" / "data" / "ddp_h200").glob("run.rank*.gz"):
        (folder / "ddp" / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))


@contextlib.contextmanager
def _in_a_terminal(folder: Path) -> Iterator[_Terminal]:
    before, there = dict(os.environ), Path.cwd()
    os.environ |= {"COLUMNS": str(WIDTH), "LINES": "50", "TERM": "xterm"}
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(_Terminal()) as out:
            yield out
    finally:
        os.chdir(there)
        os.environ.clear()
        os.environ.update(before)


def printed(command: str, folder: Path) -> str:
    """What a command prints on a terminal, without colours."""
    from profiling_lab.cli import main

    with _in_a_terminal(folder) as out:
        status = main(shlex.split(command))
    text = _STYLE.sub("", out.getvalue())
    lines = [f"$ profiling-lab {command}", *(line.rstrip() for line in text.splitlines())]
    if status:
        lines.append(f"(exit code {status})")
    return "\n".join(lines).rstrip()


def with_prints(page: str, folder: Path) -> str:
    """The page with every block as its command, run in the folder, prints it today."""

    def block(match: re.Match[str]) -> str:
        command = match["command"]
        return f"<!-- prints: {command} -->\n```text\n{printed(command, folder)}\n```\n"

    return _BLOCK.sub(block, page)


def filled() -> dict[Path, str]:
    with tempfile.TemporaryDirectory() as name:
        examples(Path(name))
        return {page: with_prints(page.read_text(), Path(name)) for page in PAGES}


def main() -> int:
    stale = {page: now for page, now in filled().items() if now != page.read_text()}
    if "--check" in sys.argv[1:]:
        for page, now in stale.items():
            before, after = page.read_text().splitlines(keepends=True), now.splitlines(keepends=True)
            sys.stderr.writelines(difflib.unified_diff(before, after, str(page.relative_to(REPO)), "now"))
        return int(bool(stale))
    for page, now in stale.items():
        page.write_text(now)
    return 0


if __name__ == "__main__":
    sys.exit(main())
