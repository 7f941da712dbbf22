"""AttentionDrop for Keras 3: one implementation for the TensorFlow, JAX and torch backends."""

try:
    import keras as _keras  # noqa: F401
except ImportError as error:
    raise ImportError(
        'attentiondrop.keras needs Keras 3; install it with: pip install "attentiondrop[keras]", and a backend'
    ) from error

from .attach import Attachment, attach
from .callbacks import ScheduleCallback, set_rates
from .consistency import ConsistencyModel, ConsistencyResult, consistency_loss, divergence
from .functional import attention, attention_weights
from .layers import AttentionDrop, GroupedQueryAttention, MultiHeadAttention

__all__ = [
    "AttentionDrop",
    "Attachment",
    "ConsistencyModel",
    "ConsistencyResult",
    "GroupedQueryAttention",
    "MultiHeadAttention",
    "ScheduleCallback",
    "attach",
    "attention",
    "attention_weights",
    "consistency_loss",
    "divergence",
    "set_rates",
]
