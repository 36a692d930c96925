# SPDX-License-Identifier: Apache-2.0
"""Programs for the made machine, each of another shape."""

from __future__ import annotations

from made_traces.machine import Machine, Program


def gpu_bound(machine: Machine) -> None:
    for line, ns in ((10, 300_000), (11, 700_000)):
        machine.host(line, 2_000)
        machine.kernel(line, ns)


def host_bound(machine: Machine) -> None:
    for line, ns in ((10, 40_000), (11, 20_000)):
        machine.host(line, ns)
        machine.kernel(line, 5_000)


def alternating(machine: Machine) -> None:
    """The host waits for each kernel before it goes on."""
    machine.host(10, 30_000)
    machine.kernel(10, 200_000)
    machine.sync(12)
    machine.host(11, 45_000)
    machine.kernel(11, 100_000)
    machine.sync(13)


def begun_early(machine: Machine) -> None:
    """Each kernel begins before the one before it has ended, as with programmatic dependent launch."""
    for line, ns in ((10, 200_000), (11, 400_000), (12, 100_000)):
        machine.host(line, 2_000)
        machine.kernel(line, ns, early=0.1)


def two_streams(machine: Machine) -> None:
    """Line 11's kernel of the second stream waits for line 10's of the first; line 14 joins them."""
    machine.kernel(10, 100_000)
    machine.wait_event(20, stream=13, on=7)
    machine.kernel(11, 400_000, stream=13)
    machine.kernel(12, 150_000)
    machine.wait_event(21, stream=7, on=13)
    machine.kernel(14, 50_000)


def sync_in_the_middle(machine: Machine) -> None:
    """Enough work is queued, but a value is read in the middle."""
    for line in (10, 11, 12):
        machine.host(line, 10_000)
        machine.kernel(line, 60_000)
    machine.sync(15)
    for line in (16, 17):
        machine.host(line, 45_000)
        machine.kernel(line, 20_000)


def with_backward(machine: Machine) -> None:
    """Forward on the main thread, backward on a thread of its own while the main one waits for it."""
    for node in (1, 2):
        machine.host(10, 20_000)
        machine.kernel(10, 8_000, peek=node)
    machine.now_ns[2] = machine.now_ns[1] + machine.took(10, 15_000)
    for node in (1, 0):
        machine.host(10, 40_000, thread=2)
        machine.kernel(10, 9_000, thread=2, peek=2, node=node, node_name="MulBackward0")
    machine.now_ns[1] = machine.now_ns[2] + machine.took(30, 37_000)
    machine.kernel(30, 6_000)


PROGRAMS: dict[str, Program] = {
    "GPU": gpu_bound,
    "host": host_bound,
    "alternating": alternating,
    "begun early": begun_early,
    "two streams": two_streams,
    "sync": sync_in_the_middle,
    "backward": with_backward,
}
