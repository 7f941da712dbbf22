"""AttentionDrop for PyTorch."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        'attentiondrop.torch needs PyTorch; install it with: pip install "attentiondrop[torch]"'
    ) from error

from .attach import attach, detach
from .attachment import Attachment
from .diversity import head_diversity_loss
from .functional import attention
from .modules import AttentionDrop

__all__ = ["AttentionDrop", "Attachment", "attach", "attention", "detach", "head_diversity_loss"]
