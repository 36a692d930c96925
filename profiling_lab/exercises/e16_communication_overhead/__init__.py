# SPDX-License-Identifier: Apache-2.0
"""E16: what does communication cost, and what would another bucket size cost?"""
