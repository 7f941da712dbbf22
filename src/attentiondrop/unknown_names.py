"""What to say about a name that is no spec: the name of a class, a method of the experiments, or a misspelt name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

#: The methods of `attentiondrop compare` that are no specs -> what does the same in your own training, if it is known.
#: They are written here because a spec must not need the experiments; a test compares them with the list there.
OF_EXPERIMENTS = {
    "adaptivespan": "",
    "attentionentropy": "",
    "branchdrop": "",
    "confidencepenalty": "",
    "cutmix": "use torchvision.transforms.v2.CutMix",
    "dropconnect": "",
    "dropdim": "",
    "dropout": "set the dropout rate of your model, or attach attndropout(p=0.1) to drop attention weights",
    "droppath": "set the drop path rate of your model, such as drop_path_rate of timm",
    "eadra": "",
    "emateacher": "",
    "headpruning": "attach headmask to mask heads in training",
    "hiddenkey": "attach dropkey(by=column), set the dropout rate of your model, and train with consistency_loss",
    "labelsmoothing": "use the label_smoothing of your loss",
    "layerdrop": "",
    "longer": "train for more epochs",
    "lsh": "",
    "manifoldmixup": "",
    "mixup": "use torchvision.transforms.v2.MixUp",
    "none": "attach nothing",
    "patchdropout": "use timm.layers.PatchDropout",
    "r-drop": "attach nothing, and pass attentiondrop.r_drop() to consistency_loss",
    "shorter": "train for fewer epochs",
    "sinkhorn": "",
    "strided": "",
    "tailblur": "attach blur(sigma_max=2.0) to the last layers, and train with consistency_loss",
    "tailhard": "attach hard(p=0.5,k=5,fill=-inf) to the last layers, and train with consistency_loss",
    "talkingheads": "",
    "topk": "",
    "window": "",
}


def explain_unknown(name: str, specs: Mapping[str, type]) -> str:
    """The message for a name that none of `specs` (name -> class) has.

    >>> from attentiondrop.specs import DropKey, HardMasking
    >>> explain_unknown("HardMasking", {"hard": HardMasking, "dropkey": DropKey})
    "unknown spec 'HardMasking': expected one of hard, dropkey; did you mean 'hard'?"
    >>> explain_unknown("mixup", {"hard": HardMasking}).partition(": ")[2]
    "it is the method 'mixup' of attentiondrop compare; use torchvision.transforms.v2.MixUp"
    """
    plain = _plain(name)
    method = next((known for known in OF_EXPERIMENTS if _plain(known) == plain), None)
    if method is not None:
        instead = OF_EXPERIMENTS[method] or "it changes more than the attention, so attach cannot do it"
        return f"unknown spec {name!r}: it is the method {method!r} of attentiondrop compare; {instead}"
    # Both ways to write a spec: the name in a text, and the name of its class.
    written = {_plain(cls.__name__): short for short, cls in specs.items()} | {short: short for short in specs}
    close = difflib.get_close_matches(plain, list(written), n=1)
    hint = f"; did you mean {written[close[0]]!r}?" if close else ""
    return f"unknown spec {name!r}: expected one of {', '.join(specs)}{hint}"


def _plain(name: str) -> str:
    """The name without what people write differently."""
    return name.lower().replace("-", "").replace("_", "")
