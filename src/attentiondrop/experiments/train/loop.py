"""The training loop for one method and one seed. It can be resumed after each epoch."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from ...errors import ArgumentError, bad_argument
from ...learning_rate import warmup_then_cosine, warmup_then_inverse_sqrt
from ...torch.attach.training_forward import state_kept
from ..config.schema import Recipe
from ..failures import in_words, is_lack_of_memory
from ..files.whole_files import DamagedRecordError, write_text
from ..methods.apply import Applied
from ..methods.parse import Method
from ..tasks.interface import Batch, Data
from ..tasks.metrics import Metrics
from ..tasks.registry import find_task
from . import checkpoint
from .accelerator import make_accelerator, prepare
from .captured_step import CAPTURED, CapturedStep, Recorder
from .compiled_code import compile_calls, share_compiled_code
from .epoch_log import BEST, EPOCHS, LAST, STATE, Epoch, rates_of, write_epoch
from .mean_of_last import MeanOfLast
from .probes import attention_entropies, gradient_spread, probe_epochs
from .seeding import derived_seed
from .sharding import full_state, is_sharded, load_full_state, model_weights, take_stored_buffers, weights_are_finite
from .step import Average, Step, Weight
from .torch_attention import meets_unsound_kernel, without_cudnn


@dataclass
class Best:
    """The best epoch on the validation part so far."""

    metrics: Metrics
    epoch: int = 0
    scores: dict[str, float] | None = None

    def improves(self, epoch: int, found: dict[str, float]) -> bool:
        """Store the epoch if it is the best so far, and return whether it is. Of equal epochs the first is the best."""
        if self.scores is not None and not self.metrics.epoch_merit(found) > self.metrics.epoch_merit(self.scores):
            return False
        self.epoch, self.scores = epoch, found
        return True

    def state_dict(self) -> dict[str, Any]:
        """The state, in plain values."""
        return {"epoch": self.epoch, "scores": self.scores}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Older versions stored the scores beside the epoch."""
        self.epoch = state["epoch"]
        self.scores = state.get("scores", {name: value for name, value in state.items() if name != "epoch"})


def initial_model(recipe: Recipe, method: Method, seed: int, data: Data) -> nn.Module:
    """The model before training, on the CPU, as the method builds it: the same in training and in evaluation.

    What the method does in training alone is not applied yet.
    """
    task = find_task(recipe.task)
    model = task.build_model(recipe.model, data, method.model_rates(), derived_seed(seed, "model"))
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(derived_seed(seed, "method"))
        for part in method.comparators:
            part.build(model)
    return model


class Training:
    """A run in training. It writes epoch lines, the best and last weights and the state to resume from to `folder`.

    Of `data` it keeps what training and the choice of the epoch need: no training ever holds the test part.
    `say` hears lines for people.
    """

    def __init__(
        self,
        recipe: Recipe,
        method: Method,
        seed: int,
        data: Data,
        folder: Path,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        recipe = dataclasses.replace(recipe, training=method.training(recipe.training))
        settings, data = recipe.training, data.having("train", "validation")
        self.recipe, self.settings, self.seed, self.folder = recipe, settings, seed, folder
        self.task = find_task(recipe.task)
        self.accelerator = make_accelerator(settings)
        self.data = data.to(str(self.accelerator.device))
        model = initial_model(recipe, method, seed, data).to(self.accelerator.device)
        compiled = settings.compile, settings.compile_loss
        if any(compiled):
            share_compiled_code()
        self.applied = Applied(method, model, *compiled, kinds=settings.kinds, own_kernels=settings.own_kernels)
        self.ema = self._average(model)
        learned = self.applied.parameters()
        groups: list[dict[str, Any]] = [{"params": list(model.parameters())}]
        if learned:
            groups.append({"params": learned, "weight_decay": 0.0})
        optimizer = torch.optim.AdamW(
            groups,
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            betas=settings.betas[:2],  # type: ignore[arg-type]
            fused=self.accelerator.device.type != "mps",
        )
        self._without_cudnn = meets_unsound_kernel(self.task, model, self.data, settings.batch_size, self.accelerator)
        if settings.compile:
            compile_calls(model, self.task.shapes_vary)
        self.model, self.optimizer = prepare(self.accelerator, model, optimizer, self.applied.compiles_loss(self.task))
        mode: Any = settings.consistency_mode
        self.plain: nn.Module = self.accelerator.unwrap_model(self.model)
        self.objective = self.applied.objective(self.task, settings.label_smoothing, mode)
        average = None if self.ema is None else Average(self.ema, self.plain, settings.ema or 0.0)
        self.step = Step(
            self.accelerator, self.model, self.optimizer, self.applied, self.objective, settings.clip, average
        )
        self._why_not_captured, self._capturing = self._plan_capture(say)
        self.steps = self.data.steps(settings.batch_size)
        smallest = self.task.smallest_batch(self.data, settings.batch_size)
        if smallest % (settings.accumulate * self.accelerator.num_processes):
            # With unequal parts, their mean is not the mean of the batch. With too few parts, no step is taken.
            raise bad_argument(
                "training.accumulate", f"parts that divide {smallest} examples evenly", settings.accumulate
            )
        self.probes = probe_epochs(settings.epochs, recipe.measure.probes)
        self.best = Best(self.task.metrics)
        self.mean = MeanOfLast(settings.average_last, settings.epochs)
        #: The first epoch that may be the best, counted from one.
        self._first_choice = method.counts_from(settings.epochs) + 1
        self.done = 0
        for line in self.task.notes(self.data):
            say(line)

    def resume(self) -> int:
        """Restore the stored state, if there is one. Returns the number of epochs that are done.

        A state that cannot be used raises `DamagedRecordError` in every process. Do not use this object after that.
        """
        state, lines = self._stored()
        if state is not None:
            try:
                load_full_state(self.accelerator, self.model, self.optimizer, self.applied, state)
                if self.ema is not None:
                    self.ema.load_state_dict(state["ema"])
                self.best.load_state_dict(state["best"])
                self.mean.load_state_dict(state.get("mean"))
                self.done = state["epoch"]
            except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
                if is_lack_of_memory(error):
                    raise
                reason = f"{self.folder / STATE} does not belong to this run: {in_words(error)}"
                raise DamagedRecordError(reason) from error
        if self.accelerator.is_main_process:
            # A crash after writing an epoch and before its state leaves a line for an epoch that is trained again.
            write_text(self.folder / EPOCHS, "".join(lines[: self.done]))
        self.accelerator.wait_for_everyone()
        return self.done

    def _stored(self) -> tuple[dict[str, Any] | None, list[str]]:
        """The state and the lines of all epochs. If one process cannot read them, all processes stop."""
        state, lines, damage = None, list[str](), None
        path = self.folder / EPOCHS
        try:
            state = checkpoint.load_state(self.folder / STATE)
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
            if state is not None and not (isinstance(state.get("epoch"), int) and 0 < state["epoch"] <= len(lines)):
                damage = f"{path} has {len(lines)} lines, but the state is of epoch {state.get('epoch')}"
        except (DamagedRecordError, UnicodeDecodeError) as error:
            damage = str(error)
        found = gather_object([damage]) if self.accelerator.num_processes > 1 else [damage]
        if reason := next(filter(None, found), None):
            raise DamagedRecordError(reason)
        return state, lines

    def run(self, on_epoch: Callable[[Epoch], None]) -> list[Epoch]:
        """Train the remaining epochs. Ends early if the loss is not a finite number."""
        epochs = []
        while self.done < self.settings.epochs:
            epoch = self._epoch(self.done)
            epochs.append(epoch)
            self.done += 1
            if self.accelerator.is_main_process:
                write_epoch(self.folder, epoch)
            if epoch.train_loss is None:
                break
            self._save()
            on_epoch(epoch)
        if self._capturing is not None:
            self._capturing.release()  # the memory is needed for the evaluation
        return epochs

    def step_times(self, epochs: int) -> list[float]:
        """The seconds of a step in each of some epochs, after one that compiles and captures."""
        found = []
        for index in range(epochs + 1):
            torch.manual_seed(derived_seed(self.seed, "epoch", index, self.accelerator.process_index))
            start = time.perf_counter()
            self._train(index)  # waits for the device at its end
            found.append((time.perf_counter() - start) / self.steps)
        if self._capturing is not None:
            self._capturing.release()
        return found[1:]

    @property
    def captured(self) -> str:
        """ "captured", or why the steps are not."""
        given_up = None if self._capturing is None else self._capturing.given_up
        return self._why_not_captured or given_up or CAPTURED

    def _plan_capture(self, say: Callable[[str], None]) -> tuple[str | None, CapturedStep | None]:
        """Why steps are not captured, or what captures them."""
        wish = self.settings.capture
        why = "training.capture is off" if wish == "off" else self._why_not_capture()
        if why is None:
            return None, CapturedStep(self.step, self._recorder(), say, wish == "on", self.task.most_shapes)
        if wish == "on":
            raise ArgumentError(f"training.capture: expected a step that can be captured: {why}")
        # On other devices nobody expects it.
        if wish == "auto" and self.accelerator.device.type == "cuda":
            say(f"training.capture: off, since {why}")
        return why, None

    def _why_not_capture(self) -> str | None:
        """What is known before trying."""
        if self.accelerator.device.type != "cuda":
            return f"it needs CUDA, and the device is {self.accelerator.device.type}"
        if self.accelerator.num_processes > 1:
            return f"it needs a single process, and there are {self.accelerator.num_processes}"
        if self.accelerator.scaler is not None:
            return "training.precision float16 scales its gradients by what it finds in them"
        if getattr(self.recipe.model, "checkpoint_activations", False):
            return "model.checkpoint_activations reads the state of the generator, which no capture allows"
        return self.applied.uncapturable()

    def _recorder(self) -> Recorder:
        from .cuda_recorder import CudaRecorder

        return CudaRecorder(self.accelerator.device)

    def _epoch(self, index: int) -> Epoch:
        # The number of an epoch decides all its random draws, so a resumed run draws the same as an uninterrupted one.
        torch.manual_seed(derived_seed(self.seed, "epoch", index, self.accelerator.process_index))
        start = time.perf_counter()
        loss = self._train(index)
        seconds = time.perf_counter() - start
        # (The last step may spoil the weights after its loss was computed.)
        finite = math.isfinite(loss) and weights_are_finite(self.accelerator, self.plain)
        judged = self._validate(index + 1) if finite and self._is_due(index + 1, self.settings.validate_every) else None
        with without_cudnn(self._without_cudnn):
            probed = self._probe(index + 1) if finite and index + 1 in self.probes else {}
        return Epoch(
            epoch=index + 1,
            learning_rate=self.optimizer.param_groups[0]["lr"],
            train_loss=loss if finite else None,
            validation=judged,
            seconds=seconds,
            samples=self.task.samples(self.data, self.settings.batch_size),
            **probed,
        )

    def _train(self, index: int) -> float:
        """Train one epoch and return the mean loss over all processes. Waits for the device only once, at the end."""
        accelerator, settings = self.accelerator, self.settings
        self.model.train()
        self.applied.begin_epoch(index, settings.epochs)
        take_step = self.step if self._capturing is None else self._capturing
        if self._capturing is not None:
            self._capturing.begin_epoch()
        total = self.step.total.zero_()
        batches = self.data.train_batches(
            seed=derived_seed(self.seed, "data"),
            epoch=index,
            batch_size=settings.batch_size,
            rank=accelerator.process_index,
            world=accelerator.num_processes,
        )
        with without_cudnn(self._without_cudnn):
            for step, batch in enumerate(batches, start=index * self.steps):
                self._set_step(step)
                parts = self.task.split(self.applied.batch(batch), settings.accumulate)
                take_step(parts, self._weights(parts))
        mean: Tensor = accelerator.reduce(total / self.steps, "mean")
        return mean.item()

    def _weights(self, parts: Sequence[Batch]) -> Sequence[Weight]:
        """The factor for the mean loss of each part of a batch; None is no factor.

        With these factors, the mean over all parts and processes is the mean over the batch, even if counts differ.
        """
        if not self.task.counts_vary:
            return [None] * len(parts)
        counts = [self.task.count(part.targets) for part in parts]
        processes = self.accelerator.num_processes
        if processes == 1:
            return [count * len(parts) / sum(counts) for count in counts]
        mine = torch.tensor(sum(counts), dtype=torch.float32, device=self.accelerator.device)
        total = self.accelerator.reduce(mine, "sum")
        return [count * len(parts) * processes / total for count in counts]

    def _set_step(self, step: int) -> None:
        steps = self.settings.epochs * self.steps
        curve = warmup_then_cosine if self.settings.schedule == "cosine" else warmup_then_inverse_sqrt
        factor = curve(step, steps, self.settings.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * factor
        self.applied.begin_step(min(1.0, step / steps))  # who measures steps may take more of them

    def _validate(self, epoch: int) -> dict[str, float]:
        """Score the weights on the validation part, and keep them if they are the best so far."""
        judged = self.plain if self.ema is None else self.ema.module
        take_stored_buffers(self.accelerator, judged)
        batch_size = self.recipe.evaluation.batch_size
        found = self.task.scores(judged, self.data, "validation", batch_size, self.accelerator)
        if epoch >= self._first_choice and self.best.improves(epoch, found):
            self._keep(BEST)
        return found

    def _probe(self, epoch: int) -> dict[str, float | None]:
        """Measure the fields of `Epoch` about gradients and attention. Only done in a single process."""
        if self.accelerator.num_processes > 1:
            return {}
        torch.manual_seed(derived_seed(self.seed, "probe", epoch))
        self.plain.train()
        batches = self.data.train_batches(
            seed=derived_seed(self.seed, "probe", epoch), epoch=0, batch_size=self.settings.batch_size
        )
        some = list(itertools.islice(batches, self.recipe.measure.batches))
        if len(some) < 2:
            return {}
        # A measurement must not change what it measures: adaptive rates, statistics of a batch norm, of heads.
        with self.accelerator.autocast(), state_kept(self.plain), self.applied.comparators_kept():
            # Lazily: what a method draws for a batch, as manifoldmixup does, holds until the next batch.
            variance, norm2 = gradient_spread(self.plain, self.objective, map(self.applied.batch, some))
            before, after = attention_entropies(self.plain, self.applied.attachment, some[0].inputs)
        return {
            "gradient_variance": variance,
            "gradient_norm2": norm2,
            "attention_entropy": before,
            "perturbed_entropy": after,
        }

    def _is_due(self, epoch: int, every: int) -> bool:
        """Whether what happens every so many epochs happens after this one. After the last one it always does."""
        return epoch % every == 0 or epoch == self.settings.epochs

    def _save(self) -> None:
        """Write the weights to keep and, every `save_every` epochs, the state to resume from."""
        if self.mean.wants(self.done):
            self.mean.add(model_weights(self.accelerator, self.model))
        if self.done == self.settings.epochs:
            self._keep(LAST)
        if self.settings.keep_every is not None and self.done % self.settings.keep_every == 0:
            self._keep(f"epoch{self.done}.safetensors")
        if self._is_due(self.done, self.settings.save_every):
            self._write_state()

    def _write_state(self) -> None:
        state = full_state(self.accelerator, self.model, self.optimizer, self.applied)
        state |= {
            "epoch": self.done,
            "best": self.best.state_dict(),
            "mean": self.mean.state_dict(),
            "ema": None if self.ema is None else self.ema.state_dict(),
        }
        if self.accelerator.is_main_process:
            checkpoint.save_state(self.folder / STATE, state)

    def _keep(self, name: str) -> None:
        weights = model_weights(self.accelerator, self.model) if self.ema is None else self.ema.module.state_dict()
        if name == LAST and self.mean.weights:
            weights = self.mean.weights
        if self.accelerator.is_main_process:
            checkpoint.save_weights(self.folder / name, weights)
            if self.applied.has_own_rates():
                checkpoint.save_state(rates_of(self.folder / name), self.applied.state_dict())

    def _average(self, model: nn.Module) -> AveragedModel | None:
        decay = self.settings.ema
        if decay is None:
            return None
        if is_sharded(self.accelerator):
            raise ArgumentError("training.ema: expected null with training.parallel=fsdp, which splits the weights")
        return AveragedModel(model, use_buffers=True)  # `Average` updates it
