# SPDX-License-Identifier: Apache-2.0
"""NVTX ranges and operators of torch.profiler: what was launched in them, and how they nest."""
