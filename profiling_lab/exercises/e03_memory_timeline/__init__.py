# SPDX-License-Identifier: Apache-2.0
"""E03: what do the copies in both directions cost?"""
