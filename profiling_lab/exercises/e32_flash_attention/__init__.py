# SPDX-License-Identifier: Apache-2.0
"""E32: what does attention have to move through memory?"""
