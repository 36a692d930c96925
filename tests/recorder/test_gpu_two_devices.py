# SPDX-License-Identifier: Apache-2.0
"""Two GPUs and several streams in one process: nothing is mixed up."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.multigpu


def test_kernels_and_copies_of_two_devices(run_gpu: Any, query: Any, launch_lines: Any) -> None:
    run_gpu("""
a, b = (torch.randn(1 << 20, device=f"cuda:{i}") for i in range(2))
host = torch.empty(1 << 20, pin_memory=True)
sides = [torch.cuda.Stream(device=i) for i in range(2)]
a.sin(), b.cos(), b.to("cuda:0"); [torch.cuda.synchronize(i) for i in range(2)]
with profiling_lab.record(OUT) as recorder:
    a.sin()
    b.cos()
    with torch.cuda.stream(sides[0]): a.tan()
    with torch.cuda.stream(sides[1]): b.exp()
    b.to("cuda:0")
    host.copy_(b)
    b.fill_(2)
    for i in range(2): torch.cuda.synchronize(i)
assert recorder.summary.dropped == 0 and recorder.summary.reasons == {}, recorder.summary
""")
    kernels = {}
    for name, device, context, stream, correlation in query(
        "SELECT value, deviceId, contextId, streamId, correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL "
        "JOIN StringIds ON id = demangledName"
    ):
        (what,) = (
            w for w in ("sin", "cos", "tan", "exp", "Fill") if f"{w}_kernel" in name or f"{w}Functor" in name
        )
        kernels[what] = (device, context, stream, correlation)
    assert {what: row[0] for what, row in kernels.items()} == {
        "sin": 0,
        "cos": 1,
        "tan": 0,
        "exp": 1,
        "Fill": 1,
    }
    contexts = {device: context for device, context, *_ in kernels.values()}
    assert len(set(contexts.values())) == 2, "each device has its own context"
    assert kernels["sin"][2] != kernels["tan"][2] and kernels["cos"][2] != kernels["exp"][2]
    line = {correlation: line for correlation, line, _ in launch_lines()}
    assert {what: line[row[3]] for what, row in kernels.items()} == {
        "sin": 6, "cos": 7, "tan": 8, "exp": 9, "Fill": 12,
    }  # fmt: skip
    copies = query(
        "SELECT copyKind, deviceId, srcDeviceId, dstDeviceId, bytes FROM CUPTI_ACTIVITY_KIND_MEMCPY "
        "ORDER BY start"
    )
    print("copies:", copies)
    nbytes = 4 << 20
    assert [copy[-1] for copy in copies] == [nbytes, nbytes]
    between = [copy for copy in copies if copy[0] in (8, 10)]  # device to device, peer to peer
    assert len(between) == 1 and between[0][2:4] in ((1, 0), (None, None)), copies
    assert [copy[:2] for copy in copies if copy[0] == 2] == [(2, 1)], "to the host, from the second"
    known = dict(query("SELECT id, uuid FROM TARGET_INFO_GPU"))
    assert len(known) == 2 and len(set(known.values())) == 2
