# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab report`: one HTML page about a trace."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from profiling_lab.cli import _trace_arguments as shared
from profiling_lab.errors import UsageError

if TYPE_CHECKING:
    from profiling_lab.report.html import Page

HELP = "write one self-contained HTML page: lines, findings, timeline, flame graph, gaps, steps"
EXAMPLES = """\
  profiling-lab report run.sqlite                             writes run.html
  profiling-lab report run.sqlite -o page.html --open         and opens it
  profiling-lab report run.sqlite --step 3:5 --title 'two steps' --overwrite
  profiling-lab report trace.json.gz -o - > page.html

The page needs no network and no server. Progress goes to standard error.
"""
_KIND_OF_SUFFIX = (".sqlite", ".db", ".gz", ".json", ".pt", ".trace")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_trace(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="PAGE",
        help="the file to write, - for standard output (default: the name of FILE with .html, in this "
        "folder)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace PAGE if it exists")
    parser.add_argument("--title", metavar="TEXT", help="the page's title (default: FILE's name)")
    parser.add_argument("--open", action="store_true", help="open the page in a browser when it is written")
    shared.add_steps_by(parser)
    shared.add_window(parser)
    shared.add_own(parser)


def run(args: argparse.Namespace) -> int:
    from profiling_lab.export.output import new_file, refuse
    from profiling_lab.report.html import build_page

    output = None if args.output == "-" else Path(args.output or default_output(args.trace))
    if output is None and args.open:
        raise UsageError("--open needs a file: pass a file name to -o instead of -")
    if output is not None:
        refuse(output, overwrite=args.overwrite, source=Path(args.trace))
    with shared.open_trace(args) as trace:
        page = build_page(trace, args.title, tuple(args.own), args.steps_by, _progress)
    if output is None:
        sys.stdout.buffer.write(page.html)
    else:
        with new_file(output, overwrite=args.overwrite) as place:  # checks again: others may write meanwhile
            place.write_bytes(page.html)
    print(_done(page, output), file=sys.stderr)
    if args.open and output is not None:
        import webbrowser

        if not webbrowser.open(output.resolve().as_uri()):
            print(f"no browser was found to show {output}", file=sys.stderr)
    return 0


def default_output(trace: str) -> str:
    """`resnet.pt.trace.json.gz` gives `resnet.html`."""
    path = Path(trace)
    while path.suffix in _KIND_OF_SUFFIX:
        path = path.with_suffix("")
    return f"{path.name}.html"


def _progress(what: str) -> None:
    print(f"report: {what}", file=sys.stderr, flush=True)


def _done(page: Page, output: Path | None) -> str:
    from profiling_lab.report import numbers

    name = "page" if output is None else str(output)
    kept = numbers.counted(page.events, "event")
    if page.kept < page.events:
        kept += f", {page.kept:,} of them individually and the rest in buckets"
    return f"{name}: {numbers.size(len(page.html))}, {kept}"
