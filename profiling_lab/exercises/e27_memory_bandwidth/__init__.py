# SPDX-License-Identifier: Apache-2.0
"""E27: why does so little arithmetic take so long?"""
