# SPDX-License-Identifier: Apache-2.0
"""Record what this process does on the GPU, and which Python line asked for it.

with profiling_lab.record("run.sqlite"):
    train()
"""

from __future__ import annotations

from profiling_lab.recording.recorder import Recorder, record, step
from profiling_lab.recording.schedule import Schedule
from profiling_lab.recording.summary import RecordingSummary

__all__ = ["Recorder", "RecordingSummary", "Schedule", "record", "step"]
