# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab recover`: write the recording of a process that was killed or crashed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "turn the .spool file of a killed or crashed recording into a recording"
EXAMPLES = """\
  profiling-lab recover run.sqlite.spool                     writes run.sqlite
  profiling-lab recover run.sqlite.spool -o partial.sqlite

After os._exit, a signal or a crash the spool has everything except about the last second. The spool is not
changed. The spool of a running recording is refused: record with --steps or --duration, or recover a copy.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spool", metavar="FILE.spool", type=Path, help="the spool file of the recording")
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
