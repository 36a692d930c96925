# SPDX-License-Identifier: Apache-2.0
"""E22: what does the program ask of the system?"""
