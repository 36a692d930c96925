# SPDX-License-Identifier: Apache-2.0
"""E23: what changed between two recordings, and what is only noise?"""
