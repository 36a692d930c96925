# SPDX-License-Identifier: Apache-2.0
"""E15: why do two GPUs not halve the step?"""
