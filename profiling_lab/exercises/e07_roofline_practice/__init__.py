# SPDX-License-Identifier: Apache-2.0
"""E07: kernels on the roofline."""
