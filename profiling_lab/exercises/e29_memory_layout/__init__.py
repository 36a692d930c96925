# SPDX-License-Identifier: Apache-2.0
"""E29: which line only moves memory around?"""
