"""The paper's theory, corrected: PAC-Bayes bounds, risk certificates, gradient variance, attention entropy.

Bounds are plain arithmetic. Names that need torch load it on first use. docs/theory.md says what is proved.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .binary_kl import binary_kl, kl_inverse
from .binomial import binomial_upper
from .certificate import Certificate, certificate_from_losses
from .divergences import Divergence, gaussian_kl, logit_noise_kl, paper_kl
from .pac_bayes import Bound, pac_bayes_bound

if TYPE_CHECKING:
    from .entropy import AttentionEntropy, attention_entropy, entropy_sweep
    from .posterior_risk import PosteriorCertificate, PosteriorSettings, posterior_certificate
    from .risk import RiskReport, risk_certificate
    from .variance import GradientVariance, gradient_variance

#: Name -> module. No module may have the name of a function: importing the module would replace the function.
_NEEDS_TORCH = {
    "AttentionEntropy": "entropy",
    "attention_entropy": "entropy",
    "entropy_sweep": "entropy",
    "GradientVariance": "variance",
    "gradient_variance": "variance",
    "PosteriorCertificate": "posterior_risk",
    "PosteriorSettings": "posterior_risk",
    "posterior_certificate": "posterior_risk",
    "RiskReport": "risk",
    "risk_certificate": "risk",
}

__all__ = [
    "pac_bayes_bound",
    "risk_certificate",
    "gradient_variance",
    "attention_entropy",
    "AttentionEntropy",
    "Bound",
    "Certificate",
    "Divergence",
    "GradientVariance",
    "PosteriorCertificate",
    "PosteriorSettings",
    "RiskReport",
    "binary_kl",
    "binomial_upper",
    "certificate_from_losses",
    "entropy_sweep",
    "gaussian_kl",
    "kl_inverse",
    "logit_noise_kl",
    "paper_kl",
    "posterior_certificate",
]


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_NEEDS_TORCH[name]}", __name__), name)
