# SPDX-License-Identifier: Apache-2.0
"""Record the GPU work of this process, with the Python lines that launched it.

with profiling_lab.record("run.sqlite"):
    train()
"""

from __future__ import annotations

from profiling_lab.recording.recorder import Recorder, record, step
from profiling_lab.recording.schedule import Schedule
from profiling_lab.recording.summary import RecordingSummary

__all__ = ["Recorder", "RecordingSummary", "Schedule", "record", "step"]
