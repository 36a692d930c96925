# SPDX-License-Identifier: Apache-2.0
"""E30: which kernels does this convolution launch?"""
