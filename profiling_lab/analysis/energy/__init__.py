# SPDX-License-Identifier: Apache-2.0
"""Joules of steps and lines, from the energy counter of the GPU."""
