# SPDX-License-Identifier: Apache-2.0
"""Merge the recordings of a job's processes into one file with one clock."""
