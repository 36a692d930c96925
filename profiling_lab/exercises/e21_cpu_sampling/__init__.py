# SPDX-License-Identifier: Apache-2.0
"""E21: which line does the host spend its time in?"""
