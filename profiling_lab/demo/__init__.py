# SPDX-License-Identifier: Apache-2.0
"""The main job on a real program: record a training script, say what the recording cost, and name the
slow line.
"""
