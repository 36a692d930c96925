# SPDX-License-Identifier: Apache-2.0
"""E11: all ranks take the same time; which one do the others wait for, and why?"""
