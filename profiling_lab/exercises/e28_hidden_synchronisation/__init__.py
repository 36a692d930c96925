# SPDX-License-Identifier: Apache-2.0
"""E28: where does the host wait for the GPU?"""
