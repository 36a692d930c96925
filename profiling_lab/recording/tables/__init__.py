# SPDX-License-Identifier: Apache-2.0
"""The tables of a recording's SQLite file, made from a capture, and their schema."""
