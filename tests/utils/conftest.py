# SPDX-License-Identifier: Apache-2.0
"""A machine with one GPU, as NVML describes it."""

from __future__ import annotations

import pytest
from utils.fake_nvml import FakeGpu, FakeNvml, install


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return install(monkeypatch, FakeGpu("GPU-aaaa", "0000:01:00.0"))
