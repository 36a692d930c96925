# SPDX-License-Identifier: Apache-2.0
"""Whether what counts as the user's code is in a recording at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from profiling_lab.errors import UsageError
from profiling_lab.trace import Trace
from profiling_lab.trace.ownership import Ownership, without_a_file

_FILES_SHOWN = 3


def check_own(own: Sequence[str], traces: Iterable[Trace]) -> None:
    """Raises UsageError if one of these paths names no file of any of the traces that have stacks."""
    if not own:
        return
    traces = tuple(traces)
    files = {frame.file for trace in traces for frame in trace.whole.stacks.frames if frame.file}
    lost = without_a_file(own, files)
    if lost:
        # Lines that launch nothing are in samples alone.
        files |= {
            frame.file
            for trace in traces
            for stack in trace.whole.samples(Ownership()).stacks
            for frame in stack
        } - {""}
        lost = without_a_file(own, files)
    if not lost or not files:
        return
    mine = [file for file in sorted(files) if Ownership().is_own(file)] or sorted(files)
    from difflib import get_close_matches

    shown = (get_close_matches(lost[0], mine, n=_FILES_SHOWN, cutoff=0.3) or mine)[:_FILES_SHOWN]
    more = f" and {len(mine) - len(shown)} more" if len(mine) > len(shown) else ""
    raise UsageError(
        f"--own {lost[0]}: no file of the recording is there; your code is in {', '.join(shown)}{more}"
    )
