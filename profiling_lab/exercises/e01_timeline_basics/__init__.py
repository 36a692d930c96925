# SPDX-License-Identifier: Apache-2.0
"""E01: where on the timeline does the GPU do nothing?"""
