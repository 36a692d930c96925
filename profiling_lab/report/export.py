# SPDX-License-Identifier: Apache-2.0
"""What `export` has written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from profiling_lab.analysis.coverage import coverage
from profiling_lab.analysis.lines_host import host_lines
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.lines.host import host_coverage, host_header
from profiling_lab.report.table import ALWAYS, Report, Unit
from profiling_lab.trace import Trace
from profiling_lab.trace.ownership import Ownership

_NEXT = {
    "perfetto": "open it on ui.perfetto.dev: it is read in the browser and sent nowhere",
    "speedscope": "open it on speedscope.app: it is read in the browser and sent nowhere",
    "collapsed": "for flamegraph.pl --countname ns, and what else reads collapsed stacks",
    "parquet": "a file per table, for pandas.read_parquet, DuckDB, Polars",
}
_FIELDS = (
    Field("what", "written", value=lambda part: part[0], priority=ALWAYS),
    Field("rows", "rows", Unit.COUNT, value=lambda part: part[1], priority=ALWAYS),
)


def export_report(
    trace: Trace,
    form: str,
    output: Path,
    written: Sequence[tuple[str, int]],
    own: tuple[str, ...] = (),
    *,
    host: bool = False,
) -> Report:
    """`written`: what, and how many rows of it. host: of samples of the host."""
    if host:
        sampled = host_lines(trace, own=own, limit=1)
        above, data = tuple(host_header(trace, sampled)), host_coverage(sampled)
    else:
        covered = coverage(trace, trace.stacks.own_rows(Ownership(own)))
        above, data = coverage_header(trace, covered), coverage_data(covered)
    files = [output] if output.is_file() else sorted(output.iterdir())
    size_bytes = sum(file.stat().st_size for file in files)
    return Report(
        command="export",
        trace={"path": str(trace.path), "to": form, "output": str(output), "output_bytes": size_bytes},
        header=(
            *above,
            f"wrote {output} ({numbers.size(size_bytes)}): {_NEXT[form]}",
        ),
        table=table_of(_FIELDS, "what rows", written, len(written)),
        coverage=data,
    )
