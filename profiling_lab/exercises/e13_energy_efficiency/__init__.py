# SPDX-License-Identifier: Apache-2.0
"""E13: which precision and which implementation need the fewest joules?"""
