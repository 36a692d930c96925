# SPDX-License-Identifier: Apache-2.0
"""What sampled hardware counters say of lines and kernels."""
