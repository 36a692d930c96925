# SPDX-License-Identifier: Apache-2.0
"""E18: what does the training loop wait for?"""
