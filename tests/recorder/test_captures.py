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

# A torch whose device notes who waited for what.
TORCH = """
import types
waits = []
class Stream:
    def __init__(self, name): self.name = name
    def synchronize(self): waits.append((self.name, _recorder.captures_under_way(), mode))
class Driver:
    def cuThreadExchangeStreamCaptureMode(self, pointer):
        global mode
        mode, pointer._obj.value = pointer._obj.value, mode
        return 0
mode = 0
cuda = types.SimpleNamespace(
    is_initialized=lambda: True, is_current_stream_capturing=lambda: False, device_count=lambda: 1,
    default_stream=lambda device: Stream("default"), current_stream=lambda device: Stream("current"),
    synchronize=lambda device: waits.append(("device", _recorder.captures_under_way(), mode)),
)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda, _C=types.SimpleNamespace(), __version__="2.11")
from profiling_lab.recording import gpu_wait
gpu_wait._driver = Driver
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


def test_nobody_waits_for_the_device_while_a_graph_is_captured(run: Any) -> None:
    run(
        CAPTURES
        + TORCH
        + """
recorder = profiling_lab.recording.Recorder(OUT, autograd=False); recorder.start()
recorder.pause()
assert waits == [("device", 0, 0)]
begin(); waits.clear()
recorder.resume(); recorder.pause()
assert waits == [("default", 1, 2), ("current", 1, 2)] * 2 and mode == 0, waits
end(); waits.clear()
recorder.resume()
assert waits == [("device", 0, 0)]
assert "sync" not in recorder.stop().reasons
"""
    )


def test_a_driver_without_the_exemption_is_told(run: Any) -> None:
    run(
        CAPTURES
        + TORCH
        + """
Driver.cuThreadExchangeStreamCaptureMode = lambda *_: 1
recorder = profiling_lab.recording.Recorder(OUT, autograd=False); recorder.start()
begin()
recorder.pause()
assert "knows no exemption" in recorder.stop().reasons["sync"] and waits == []
"""
    )
