"""PyTorch, in and out: the one room that imports torch.

`from_torch` gives the graph of a step, `checkpoint` a module that trains within a budget, `train_step` a step with its
update, `apply` a module that runs a plan made before, `verify` holds a plan to what it claims by running it, and
`track` counts what a call of PyTorch holds, to the byte. Without our executor: `wrap_checkpoints` runs whole modules
again, and `Partition` plans for `torch.compile`.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("planner.torch needs PyTorch: pip install 'sublinear-planner[torch]'") from error

from planner.torch.from_module import from_torch as from_torch
from planner.torch.module import Planned as Planned
from planner.torch.module import apply as apply
from planner.torch.module import checkpoint as checkpoint
from planner.torch.partition import Partition as Partition
from planner.torch.reruns import Checkpointed as Checkpointed
from planner.torch.reruns import wrap_checkpoints as wrap_checkpoints
from planner.torch.tracker import Memory as Memory
from planner.torch.tracker import Storage as Storage
from planner.torch.tracker import track as track
from planner.torch.train import TrainStep as TrainStep
from planner.torch.train import train_step as train_step
from planner.torch.verification import Verification as Verification
from planner.torch.verification import verify as verify
