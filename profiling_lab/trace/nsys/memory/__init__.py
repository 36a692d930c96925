# SPDX-License-Identifier: Apache-2.0
"""Allocations of GPU memory: the driver's, as nsys records them, and those of torch's allocator."""
