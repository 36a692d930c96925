# SPDX-License-Identifier: Apache-2.0
"""What runs at once: classes of operations, pairs of them, streams."""
