# SPDX-License-Identifier: Apache-2.0
"""Nsight Compute: its reports, the launches of a line that it shall profile, and what it said of them."""
