# SPDX-License-Identifier: Apache-2.0
"""E10: what holds memory at the peak, and does it have to?"""
