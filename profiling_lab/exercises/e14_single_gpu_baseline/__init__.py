# SPDX-License-Identifier: Apache-2.0
"""E14: is this benchmark fair?"""
