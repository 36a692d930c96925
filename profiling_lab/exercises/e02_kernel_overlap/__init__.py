# SPDX-License-Identifier: Apache-2.0
"""E02: which kernels could overlap?"""
