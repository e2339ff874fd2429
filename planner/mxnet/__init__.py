"""The system of Chen et al. 2016 as MXNet 1.5.1 shipped it, block for block: graphs, models, block sharing and search.

Nothing below this room imports it, except `planner.zoo`, which names its models. It enters by the two public doors.
"""

from __future__ import annotations

from functools import cache


@cache
def register() -> None:
    """Make strategy "memonger" and allocator "nnvm" available in this process; once, so a user may replace them."""
    from planner.mxnet.memonger import memonger
    from planner.mxnet.nnvm import nnvm
    from planner.packing import register_allocator
    from planner.search import register_strategy

    register_strategy("memonger", memonger)
    register_allocator("nnvm", nnvm)
