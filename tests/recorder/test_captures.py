# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs that some thread captures while the recorder would like to wait for the GPU."""

from __future__ import annotations

from typing import Any

# The runtime's calls make the driver's, as CUDA's do; the driver's alone come from others.
CAPTURES = """
from profiling_lab import _recorder
BEGIN, END, DRIVER_BEGIN, DRIVER_END = 313, 316, 514, 480
def around(outer, inner, result=0):
    a = fake.enter(RUNTIME, outer)
    b = fake.enter(DRIVER, inner); fake.exit(DRIVER, inner, b, result)
    fake.exit(RUNTIME, outer, a, result)
def begin(result=0): around(BEGIN, DRIVER_BEGIN, result)
def end(): around(END, DRIVER_END)
"""


def test_captures_are_counted_on_all_threads(run: Any) -> None:
    run(
        CAPTURES
        + """
import threading
count = _recorder.captures_under_way
with profiling_lab.record(OUT) as recorder:
    end(); assert count() == 0  # begun before the recording
    begin(); assert count() == 1
    thread = threading.Thread(target=begin); thread.start(); thread.join()
    assert count() == 2
    begin(result=900); assert count() == 2  # refused
    end(); assert count() == 1
    fake.call(DRIVER_BEGIN, domain=DRIVER); assert count() == 2
    recorder.pause()
    fake.call(DRIVER_END, domain=DRIVER); end(); assert count() == 0
    begin(); assert count() == 1
    recorder.resume()
with profiling_lab.record(OUT, overwrite=True): assert count() == 0
assert recorder.summary.launches == 0  # they are no launches
"""
    )
