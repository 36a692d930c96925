# SPDX-License-Identifier: Apache-2.0
"""E35: why does a kernel take ten times as long as its bytes need?"""
