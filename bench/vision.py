"""torchvision beside a build of torch that its compiled part is not made for."""

from __future__ import annotations


def name_missing_ops() -> None:
    """Make `import torchvision` work where its compiled ops cannot be loaded, as beside torch's CPU build.

    Package indexes serve torchvision for CUDA. Its models are plain Python, but its import fails beside another build:
    it gives two ops a rule for shapes, and the ops do not exist. Naming them is enough; they still cannot be run.

    Raises:
        ModuleNotFoundError: torch or torchvision is not installed.
    """
    from torch.library import define

    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
        for op in ("nms", "qnms"):
            define(f"torchvision::{op}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
