"""AttentionDrop for PyTorch."""

from .attach import Attachment, attach, detach
from .functional import attention
from .modules import AttentionDrop

__all__ = ["AttentionDrop", "Attachment", "attach", "attention", "detach"]
