# SPDX-License-Identifier: Apache-2.0
"""E33: why does a kernel that only reads memory not use its bandwidth?"""
