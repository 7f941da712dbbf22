"""AttentionDrop for PyTorch."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        'attentiondrop.torch needs PyTorch; install it with: pip install "attentiondrop[torch]"'
    ) from error

from .attach import attach, detach
from .attach.attachment import Attachment
from .call.blocks import Blocks
from .consistency.head_diversity import head_diversity_loss
from .consistency.loss import ConsistencyResult, consistency_loss
from .consistency.views import views
from .functional import attention
from .modules import AttentionDrop

__all__ = [
    "AttentionDrop",
    "Attachment",
    "Blocks",
    "ConsistencyResult",
    "attach",
    "attention",
    "consistency_loss",
    "detach",
    "head_diversity_loss",
    "views",
]
