# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab export`: a trace in the formats of other tools."""

from __future__ import annotations

import argparse
from pathlib import Path

from profiling_lab.cli import _trace_arguments as shared

HELP = "write a trace for other tools: Perfetto, speedscope, flame graphs, Parquet"
EXAMPLES = """\
  profiling-lab export run.sqlite --to perfetto -o run.json.gz         open it on ui.perfetto.dev
  profiling-lab export run.sqlite --to perfetto -o step.json --step 3
  profiling-lab export run.sqlite --to speedscope -o run.speedscope.json
  profiling-lab export run.sqlite --to collapsed -o run.txt && flamegraph.pl --countname ns run.txt > run.svg
  profiling-lab export run.sqlite --to speedscope --host -o host.speedscope.json
  profiling-lab export run.sqlite --to parquet -o run.parquetdir       operations, calls, ranges, stacks
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    parser.add_argument(
        "--to",
        choices=("perfetto", "speedscope", "collapsed", "parquet"),
        required=True,
        help="perfetto: Chrome trace JSON, compressed if OUT ends in .gz; speedscope and collapsed: GPU "
        "time by "
        "Python stack; parquet: a folder with a file per table",
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT", type=Path, required=True, help="file or folder to write"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    parser.add_argument(
        "--frames",
        choices=("own", "all"),
        help="for speedscope and collapsed: only your frames, or those of libraries too (default: all)",
    )
    parser.add_argument(
        "--host",
        action="store_true",
        help="for speedscope and collapsed: host time by sampled Python stack and thread (record "
        "--sample-python takes samples); needs no GPU operation",
    )
    shared.add_own(parser)
    shared.add_window(parser)
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from functools import partial

    from profiling_lab.cli._progress import progress
    from profiling_lab.errors import UsageError
    from profiling_lab.export.output import new_file, new_folder
    from profiling_lab.report.export import export_report
    from profiling_lab.report.table import write

    output: Path = args.output
    if args.frames and args.to not in ("speedscope", "collapsed"):
        raise UsageError(f"--frames cannot be combined with --to {args.to}, which always has all frames")
    if args.host and args.to not in ("speedscope", "collapsed"):
        raise UsageError(f"--host works only with --to speedscope and --to collapsed, not with {args.to}")
    if str(output) == "-":
        raise UsageError("-o needs a file name: standard output is used for the summary")
    own, own_only, source = tuple(args.own), args.frames == "own", Path(args.trace)
    with shared.open_trace(args) as trace, progress() as told:
        if args.to == "parquet":
            from profiling_lab.export.parquet import write_parquet

            with new_folder(output, suffix=".parquet", overwrite=args.overwrite, source=source) as folder:
                written = write_parquet(trace, folder, own, progress=told)
        else:
            if args.to == "perfetto":
                from profiling_lab.export.perfetto import write_perfetto

                export = partial(write_perfetto, packed=output.suffix == ".gz")
            elif args.to == "speedscope":
                from profiling_lab.export.speedscope import write_speedscope

                export = partial(write_speedscope, own_only=own_only, host=args.host)
            else:
                from profiling_lab.export.collapsed import write_collapsed

                export = partial(write_collapsed, own_only=own_only, host=args.host)
            with new_file(output, overwrite=args.overwrite, source=source) as place:
                written = export(trace, place, own, progress=told)
        rows = [(part.what, part.rows) for part in written]
        write(export_report(trace, args.to, output, rows, own, host=args.host), args.format)
    return 0
