# SPDX-License-Identifier: Apache-2.0
"""What a trace tells: one question, one module."""
