# SPDX-License-Identifier: Apache-2.0
"""E25: why does the GPU wait for its data?"""
