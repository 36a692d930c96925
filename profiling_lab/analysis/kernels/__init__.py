# SPDX-License-Identifier: Apache-2.0
"""The kernels that cost most, how they were launched, and how long they queued."""
