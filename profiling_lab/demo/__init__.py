# SPDX-License-Identifier: Apache-2.0
"""The demo: record a training script, report the recording's overhead, and find the slow line."""
