# SPDX-License-Identifier: Apache-2.0
"""Kernels as rows: by name, and by launch."""
