# SPDX-License-Identifier: Apache-2.0
"""Analyses of a trace: one question, one module."""
