# SPDX-License-Identifier: Apache-2.0
"""E12: what the power sensor and the energy counter show, and how many joules a kernel takes."""
