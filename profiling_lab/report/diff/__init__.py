# SPDX-License-Identifier: Apache-2.0
"""The command `diff`: its table, its sentences, and what CI systems read."""
