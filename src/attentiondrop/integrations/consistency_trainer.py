"""A transformers `Trainer` with the consistency loss; import it from `attentiondrop.integrations.transformers`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Trainer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ..errors import AttentionDropError, bad_argument
from ..specs import Consistency
from ..torch.consistency.divergence import check_logits, divergence
from ..torch.consistency.loss import check_varies, pick_logits, settings_for
from ..torch.consistency.stacked_batch import check_parted
from ..torch.consistency.views import MODES, Mode, views
from ..validation import one_of
from .model_loss import IGNORED, Losses, measure, one_label, takes_labels

#: Problem types of transformers whose outputs are no logits of one softmax, and what the divergence can take instead.
_ONE_BY_ONE = {
    "multi_label_classification": "an override that returns torch.stack([torch.zeros_like(y), y], dim=-1) for logits y "
    "of sigmoids",
    "regression": "logits of a softmax (for other outputs, use attentiondrop.torch.views and a distance of your own)",
}


class ConsistencyTrainer(Trainer):  # type: ignore[misc]
    """A `Trainer` whose training loss is `attentiondrop.torch.consistency_loss`. Evaluation is one plain pass.

    Label smoothing and `compute_loss_func` act on each view as on the output of a plain pass. Like the task loss, the
    divergence is averaged over the samples, or over the tokens with a label, of the whole accumulated batch.

    Args:
        consistency: a spec, its text, its weight alone, or None for the one in the specs attached to the model.
        consistency_mode: `"batch"`, `"sequential"` or `"shared"`, as for `consistency_loss`. With `"sequential"` the
            model computes its own loss in each pass. Otherwise the loss is the cross entropy of logits and labels,
            shifted by one if the model does so. The first step compares it with the model's own loss in a plain pass,
            and raises an error if they differ. Other losses need `compute_loss_func`.

    Logs the mean divergence as `divergence`. Override `pick_logits` for models without `logits` in their output.
    """

    def __init__(
        self,
        *args: Any,
        consistency: Consistency | str | float | None = None,
        consistency_mode: Mode = "batch",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        one_of("consistency_mode", consistency_mode, MODES)
        self.consistency_mode = consistency_mode
        self._given = consistency
        #: The sum of the divergences since the last log, and their number. (There may be no log before the end.)
        self._divergence: Tensor | float = 0.0
        self._divergences = 0
        #: Whether the logits at a position predict the next label. This is a guess until the first step.
        self._shifts = self._is_causal()
        #: Whether the model divides its loss by `num_items_in_batch`. Its forward may take the number and not use it.
        self._divides = True
        self._looked = False
        settings_for(self.model, consistency)  # raises for a missing or wrong spec now, not in the first step

    @property
    def consistency(self) -> Consistency:
        """The present weight, number of views, direction and task."""
        return settings_for(self.model, self._given)

    def pick_logits(self, outputs: Any) -> Any:
        """The logits in the output of one view."""
        return pick_logits(outputs)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The consistency loss in training, the loss of one plain pass in evaluation."""
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        settings, labels = self.consistency, inputs.get("labels")
        self._look_at_own_loss(model, inputs, num_items_in_batch)
        if self.consistency_mode == "sequential":
            items = num_items_in_batch if self._divides else None
            passes = [
                super(ConsistencyTrainer, self).compute_loss(model, dict(inputs), True, items)
                for _ in range(settings.views)
            ]
            losses, outputs = [loss for loss, _ in passes], tuple(output for _, output in passes)
        else:
            outputs = views(model, self._without_labels(inputs), settings.views, self.consistency_mode)
            chosen = outputs if settings.task == "mean" else outputs[:1]
            losses = [
                super(ConsistencyTrainer, self).compute_loss(
                    _Answer(self, output), dict(inputs), num_items_in_batch=num_items_in_batch
                )
                for output in chosen
            ]
        logits = [check_logits(self.pick_logits(output)) for output in outputs]
        self._check_softmax(logits[0], labels)
        check_parted(logits[0])
        check_varies(model, logits)
        mask = self._mask(logits[0], labels)
        task = torch.stack(losses).mean() if settings.task == "mean" else losses[0]
        apart = divergence(logits, settings.direction, mask)
        self._divergence = self._divergence + apart.detach()
        self._divergences += 1
        share = self._share(labels, mask, num_items_in_batch, apart.device)
        loss = (task if self._divides else task * share) + settings.weight * apart * share
        return (loss, outputs[0]) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log the training loss with the mean divergence since the last log."""
        if "loss" in logs and self._divergences:
            logs["divergence"] = float(self._divergence) / self._divergences
            self._divergence, self._divergences = 0.0, 0
        super().log(logs, *args, **kwargs)

    def own_loss(self, logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        """The loss that the model would compute from labels: cross entropy, divided by `items` if that is given."""
        if labels.is_floating_point() or labels.dim() != logits.dim() - 1:
            raise bad_argument(
                "compute_loss_func",
                f'a loss for labels of shape {list(labels.shape)} and {labels.dtype}, or consistency_mode="sequential"',
                None,
            )
        labels = self._targets(labels.to(logits.device))
        wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        reduction = "mean" if items is None else "sum"
        loss = F.cross_entropy(wide.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction=reduction)
        return loss if items is None else loss / items

    def _check_softmax(self, logits: Tensor, labels: Tensor | None) -> None:
        """Refuse outputs that are trained one by one (several labels, a regression): their softmax means nothing."""
        config = getattr(self.accelerator.unwrap_model(self.model), "config", None)
        problem = getattr(config, "problem_type", None)
        if labels is not None and labels.shape == logits.shape and problem in _ONE_BY_ONE:
            raise bad_argument("pick_logits", _ONE_BY_ONE[problem], f"the outputs of a {problem}")

    def _mask(self, logits: Tensor, labels: Tensor | None) -> Tensor | None:
        """True at the positions with a label; None if labels are not for positions."""
        if labels is None or labels.shape != logits.shape[:-1]:
            return None
        return self._targets(labels.to(logits.device)) != IGNORED

    def _share(
        self, labels: Tensor | None, mask: Tensor | None, items: Tensor | int | None, device: torch.device
    ) -> Tensor | float:
        """The factor that makes a mean over this batch a part of the mean over the whole accumulated batch."""
        whole_batch = self.compute_loss_func is not None or (self.model_accepts_loss_kwargs and items is not None)
        if not whole_batch:
            return 1.0  # the Trainer divides by the number of accumulated batches
        if items is None or labels is None:
            return 1.0 / getattr(self, "current_gradient_accumulation_steps", 1)
        here = (labels != IGNORED if mask is None else mask).sum().to(device)
        return here / torch.as_tensor(items, device=device) * self._processes()

    def _processes(self) -> int:
        """The number of processes whose items `num_items_in_batch` counts and over which gradients are averaged."""
        if not self.args.average_tokens_across_devices:
            return 1
        return int(self.accelerator.num_processes // getattr(self, "get_tp_size", lambda: 1)())

    def _targets(self, labels: Tensor) -> Tensor:
        """The label that the logits at each position predict. Labels [batch] have no positions."""
        shifts = self._shifts and labels.dim() > 1
        return F.pad(labels, (0, 1), value=IGNORED)[..., 1:] if shifts else labels

    def _look_at_own_loss(self, model: nn.Module, inputs: dict[str, Any], items: Tensor | int | None) -> None:
        """In the first step, find out how the model computes its own loss, if that is what is trained.

        With `"sequential"` the model may have any loss. Otherwise it must be the one that we compute.
        """
        replaced = self.label_smoother is not None or self.compute_loss_func is not None
        if self._looked or replaced or not isinstance(inputs.get("labels"), Tensor):
            return
        if not takes_labels(self.accelerator.unwrap_model(self.model)):
            return
        sequential = self.consistency_mode == "sequential"
        asked = items if sequential and self.model_accepts_loss_kwargs else None
        losses = self._measured(model, inputs, asked)
        if losses is not None and len(losses.own) == 0:
            return  # no batch has labels: look again in the next step
        self._looked = True
        if losses is None:
            return
        self._divides = asked is None or not losses.agree(losses.divided)
        known = not losses.expected.isnan().any()  # else the labels are of a kind that `own_loss` refuses itself
        if not sequential and known and not any(losses.fits()):
            raise self._another_loss(losses)
        if all(losses.fits()) and inputs["labels"].dim() > 1:
            # Means over many labels may be alike, above all in low precision. The losses of single ones differ.
            single = self._measured(model, {**inputs, "labels": one_label(inputs["labels"])}, None)
            losses = losses if single is None else single
        if losses.fits() == (False, True):
            self._shifts = not self._shifts

    def _measured(self, model: nn.Module, inputs: dict[str, Any], asked: Tensor | int | None) -> Losses | None:
        return measure(model, inputs, asked, partial(self._our_loss, inputs["labels"]), self.accelerator.gather)

    def _our_loss(self, labels: Tensor, output: Any, as_expected: bool) -> Tensor:
        """The mean cross entropy with labels shifted as expected or not; NaN if the labels are not for these logits."""
        logits = check_logits(self.pick_logits(output))
        labels = labels.to(logits.device)
        known = (labels == IGNORED) | ((labels >= 0) & (labels < logits.shape[-1]))
        if labels.is_floating_point() or labels.shape != logits.shape[:-1] or not known.all():
            return torch.full((), torch.nan, device=logits.device)
        kept = self._shifts
        self._shifts = kept if as_expected else not kept
        try:
            return self.own_loss(logits, labels, None)
        finally:
            self._shifts = kept

    def _another_loss(self, losses: Losses) -> AttentionDropError:
        return AttentionDropError(
            f"ConsistencyTrainer: {self.model_name()} computes another loss than the cross entropy of its logits and "
            f"labels: {losses.own[0]:.4f} for the first batch, while the cross entropy is {losses.expected[0]:.4f}. "
            'Use consistency_mode="sequential", in which the model computes its own loss, or give the loss as '
            "compute_loss_func"
        )

    def _is_causal(self) -> bool:
        # Newer releases of the Trainer know it, but miss models whose name does not end in ForCausalLM.
        causal: bool = getattr(self, "_loss_shifts_labels", False)
        return causal or self.model_name() in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()

    def model_name(self) -> str:
        """The class name of the model inside all wrappers."""
        model: Any = self.accelerator.unwrap_model(self.model)
        if hasattr(model, "peft_config"):
            model = model.base_model.model
        return str(model._get_name())

    def _without_labels(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs that the model needs to compute logits without a loss."""
        rest = {name: x for name, x in inputs.items() if name != "labels"}
        model: Any = self.accelerator.unwrap_model(self.model)
        prepare = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        if prepare is not None and "labels" in inputs and "decoder_input_ids" not in inputs:
            # With labels, the model would compute them itself.
            rest["decoder_input_ids"] = prepare(labels=inputs["labels"])
        return rest


class _Answer(nn.Module):
    """Takes the place of the model when the Trainer asks for the loss of one view: returns the existing output."""

    def __init__(self, trainer: ConsistencyTrainer, output: Any) -> None:
        super().__init__()
        self.answer = (trainer, output)  # in a tuple: neither is a part of this module

    def forward(self, labels: Tensor | None = None, num_items_in_batch: Any = None, **inputs: Any) -> Any:
        trainer, output = self.answer
        if labels is None:
            return output
        loss = trainer.own_loss(trainer.pick_logits(output), labels, num_items_in_batch)
        return {**output, "loss": loss}

    def _get_name(self) -> str:
        return self.answer[0].model_name()
