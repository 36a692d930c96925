# SPDX-License-Identifier: Apache-2.0
"""The recordings of a job's processes in one file, on one clock."""
