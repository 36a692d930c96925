# SPDX-License-Identifier: Apache-2.0
"""E36: where does a wrong number begin?"""
