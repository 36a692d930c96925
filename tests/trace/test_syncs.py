# SPDX-License-Identifier: Apache-2.0
"""Which stream a synchronisation is about."""

from __future__ import annotations

from pathlib import Path

from builders import VM, TraceBuilder

from profiling_lab.trace import Trace


def test_the_stream_that_waits_or_is_waited_for(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("gemm", 1_000)
    for stream, kind in ((13, 2), (7, 3), ((1 << 32) - 1, 4)):
        builder.row(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=1, end=2, deviceId=0, contextId=1, streamId=stream,
            correlationId=1, globalPid=VM | 100 << 24, syncType=kind, eventId=0,
        )  # fmt: skip
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        assert trace.syncs.stream.tolist() == [13, 7, -1], "a device has none"
