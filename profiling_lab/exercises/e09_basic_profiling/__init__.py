# SPDX-License-Identifier: Apache-2.0
"""E09: which operator takes the time, and which steps were profiled?"""
