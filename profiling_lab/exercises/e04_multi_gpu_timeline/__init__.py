# SPDX-License-Identifier: Apache-2.0
"""E04: what of the communication does compute hide, and what decides it?"""
