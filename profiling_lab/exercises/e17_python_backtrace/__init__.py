# SPDX-License-Identifier: Apache-2.0
"""E17: which Python line launched the most expensive kernel?"""
