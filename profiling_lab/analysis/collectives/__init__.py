# SPDX-License-Identifier: Apache-2.0
"""Every collective of a job, or their sums: bytes, bandwidth, what compute hides, and who launched them."""

from __future__ import annotations

from profiling_lab.analysis.collectives.collectives import CollectivesResult, collectives
from profiling_lab.analysis.collectives.links import Links
from profiling_lab.analysis.collectives.rows import By, CollectiveSum

__all__ = ["By", "CollectiveSum", "CollectivesResult", "Links", "collectives"]
