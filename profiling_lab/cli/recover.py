# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab recover`: the recording of a process that could not finish it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "turn what a killed or crashed recording left behind (its .spool file) into a recording"
EXAMPLES = """\
  profiling-lab recover run.sqlite.spool                     writes run.sqlite
  profiling-lab recover run.sqlite.spool -o partial.sqlite

A recording that ended by os._exit, a signal or a crash has everything but its last second or so.
The spool is left alone. While its recording still runs it is refused: record with --steps or --duration, or
recover a copy of it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spool", metavar="FILE.spool", type=Path, help="what the recording left behind")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="SQLite file to write (default: FILE)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it exists")


def run(args: argparse.Namespace) -> int:
    from profiling_lab.errors import UnreadableInputError, UsageError
    from profiling_lab.recording.convert import convert

    spool: Path = args.spool
    if not spool.is_file():
        raise UnreadableInputError(f"there is no file {spool}")
    if args.output is None and spool.suffix != ".spool":
        raise UsageError(f"expected a name that ends in .spool, or the name to write with -o; got {spool}")
    output: Path = args.output or spool.with_suffix("")
    if output.exists() and not args.overwrite:
        raise UsageError(f"{output} exists already; choose another name with -o or pass --overwrite")
    if not output.parent.is_dir():
        raise UsageError(f"the folder {output.parent} does not exist")
    done = convert(spool, output, overwrite=args.overwrite)
    rows = done.rows
    kernels, launches = rows.get("CUPTI_ACTIVITY_KIND_KERNEL", 0), rows.get("PYREC_LAUNCH", 0)
    print(
        f"profiling-lab: recovered {kernels:,} kernels and {launches:,} CUDA calls; wrote {output}; "
        f"next: profiling-lab {'lines' if kernels else 'info'} {output}",
        file=sys.stderr,
    )
    if done.unreadable:
        print(f"profiling-lab: {done.unreadable}", file=sys.stderr)
    return 0
