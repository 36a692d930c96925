# SPDX-License-Identifier: Apache-2.0
"""E37: which of three programs is slow, on which line, and why? From the trace alone."""
