# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab merge`: put the recordings of a job into one file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "put the recordings of several processes of one job (ranks, workers) into one file"
EXAMPLES = """\
  profiling-lab merge run.rank*.sqlite -o run.sqlite
  profiling-lab merge train.sqlite loader-0.sqlite loader-1.sqlite -o job.sqlite

Then: profiling-lab lines run.sqlite --rank 3, or profiling-lab ranks run.sqlite

The input files are not changed. Times are aligned by the wall clock recorded in each file: exact to some
microseconds on one machine, and as exact as the clocks agree between machines. Processes, streams and
correlation ids stay separate, as in recordings of nsys. `ranks` also reads many files without merging.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recordings", metavar="FILE", nargs="+", type=Path, help="recordings of one job")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="SQLite file to write"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it exists")


def run(args: argparse.Namespace) -> int:
    from profiling_lab.cli._progress import progress
    from profiling_lab.errors import UsageError
    from profiling_lab.recording.merging.merge import merge
    from profiling_lab.report import numbers

    output: Path = args.output
    if output.exists() and not args.overwrite:
        raise UsageError(f"{output} exists already; choose another name with -o or pass --overwrite")
    if output.is_dir():
        raise UsageError(f"{output} is a folder; the merged recording needs a file name")
    if not output.parent.is_dir():
        raise UsageError(f"the folder {output.parent} does not exist")
    with progress() as told:
        merged = merge(args.recordings, output, told)
    for note in (*merged.notes, merged.facts["clock_alignment"]):
        print(f"profiling-lab: {note}", file=sys.stderr)
    kernels = merged.rows.get("CUPTI_ACTIVITY_KIND_KERNEL", 0)
    calls, processes = merged.rows.get("PYREC_LAUNCH", 0), merged.rows.get("PROCESSES", 0)
    print(
        f"profiling-lab: merged {processes} processes with "
        f"{numbers.counted(kernels, 'kernel')} and {numbers.counted(calls, 'CUDA call')}; "
        f"wrote {output} ({numbers.size(output.stat().st_size)}); next: profiling-lab ranks {output}",
        file=sys.stderr,
    )
    return 0
