"""Certificates of runs: the data they use, and runs that cannot be certified."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attentiondrop import ArgumentError
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.runs.execute import execute
from attentiondrop.experiments.runs.finished_run import load_rates, load_run
from attentiondrop.experiments.runs.job import Job
from attentiondrop.experiments.runs.store import REQUEST
from attentiondrop.experiments.studies import certify
from attentiondrop.experiments.studies.certify import certify_run, check_held_out
from attentiondrop.theory.fitting import Schedule
from attentiondrop.torch.attach.sites import site_of

SETTINGS = [
    "data.limit=96",
    "model.arguments={depth: 1, embed_dim: 16, num_heads: 2}",
    "training={epochs: 2, batch_size: 16, device: cpu}",
    "measure.probes=0",
]


def make(out: Path, method: str, *changes: str) -> Path:
    job = Job(read_recipe("digits", "demo", [*SETTINGS, *changes]).to_dict(), method, 0, str(out))
    assert execute(job).status == "finished"
    return job.folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("run"), "hard(p=0.2,k=3)")


def test_learned_rates_are_those_of_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path, "noise(sigma=learnable(0.5,high=2.0))")
    used, certificate = [], certify.risk_certificate

    def watched(model: torch.nn.Module, *args: Any, **options: Any) -> Any:
        (site,) = [site for module in model.modules() if (site := site_of(module)) is not None]
        used.append(float(site.driven.values[0]["sigma"]()))
        return certificate(model, *args, **options)

    monkeypatch.setattr(certify, "risk_certificate", watched)
    certify_run(folder, draws=2, prior_epochs=0)
    run = load_run(folder)
    assert [pytest.approx(rates["noise.sigma"]) for rates in run.applied.attachment.rates().values()] != used
    load_rates(run.applied, run.weights)
    assert [pytest.approx(rates["noise.sigma"]) for rates in run.applied.attachment.rates().values()] == used


@pytest.mark.parametrize("method", ["noise(sigma=learnable(0.5,high=2.0))", "noise(sigma=linear(start=0.1,end=0.5))"])
def test_the_prior_does_not_know_what_the_run_learned_from_all_examples(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rates are those that the method begins with, or at the end of a schedule."""
    used, certificate = [], certify.posterior_certificate

    def watched(model: torch.nn.Module, *args: Any, **options: Any) -> Any:
        (site,) = [site for module in model.modules() if (site := site_of(module)) is not None]
        sigma = site.driven.values[0]["sigma"]
        used.append(float((sigma() if callable(sigma) else sigma).detach()))
        return certificate(model, *args, **options)

    monkeypatch.setattr(certify, "posterior_certificate", watched)
    found = certify_run(make(tmp_path, method), draws=2, prior_epochs=1)
    assert used == [pytest.approx(0.5)] and found.posterior is not None
    assert any("rates that the run learned" in note for note in found.notes) == ("learnable" in method)


def test_all_certificates(run: Path) -> None:
    heard: list[float] = []
    found = certify_run(run, draws=2, prior_epochs=1, on_progress=lambda label, share: heard.append(share))
    assert heard == sorted(heard) and heard[-1] == 1.0
    assert found.posterior is not None and found.test_error is not None
    assert found.held_out.deterministic.estimate == pytest.approx(found.test_error)
    for entry in (*found.held_out.certificates, *found.posterior.certificates):
        assert entry.value >= min(1.0, entry.estimate)
    assert found.held_out.stochastic.n == 96 and found.posterior.prior_examples == 48
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_test_error_of_other_weights_is_named(tmp_path: Path, run: Path) -> None:
    other = "the run's own test error is that of its last weights, and its best weights are certified"
    folder = make(tmp_path, "none", "training.select=last")
    assert other in certify_run(folder, draws=2, prior_epochs=0).notes
    assert not any("own test error" in note for note in certify_run(folder, weights="last", prior_epochs=0).notes)
    assert not any("own test error" in note for note in certify_run(run, draws=2, prior_epochs=0).notes)


def test_what_the_training_of_a_prior_leaves_out_is_named(tmp_path: Path, run: Path) -> None:
    folder = make(tmp_path, "mixup+confidencepenalty")
    left_out = "the model of the prior is trained without mixup: it changes batches"
    assert any(note.startswith(left_out) for note in certify_run(folder, draws=2, prior_epochs=1).notes)
    assert not any("without mixup" in note for note in certify_run(folder, draws=2, prior_epochs=0).notes)
    assert not any("is trained without" in note for note in certify_run(run, draws=2, prior_epochs=1).notes)


def test_weights_that_do_not_exist_are_refused(run: Path) -> None:
    for load in (certify_run, load_run):
        with pytest.raises(ArgumentError, match=r"weights: expected one of 'best', 'last', received 'bset'"):
            load(run, weights="bset")


def test_a_prior_is_not_trained_for_less_than_no_epoch(run: Path) -> None:
    with pytest.raises(ArgumentError, match="prior_epochs: expected a number >= 0, received -1"):
        certify_run(run, prior_epochs=-1)


def test_the_prior_can_be_left_out(run: Path) -> None:
    found = certify_run(run, draws=2, prior_epochs=0)
    assert found.posterior is None and found.to_dict()["posterior"] is None


def test_the_prior_is_trained_as_the_run_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = ["learning_rate=0.003", "weight_decay=0.02", "warmup=0.3"]
    folder = make(tmp_path, "hard", *(f"training.{change}" for change in changes))
    used: list[Any] = []
    applied, certificate = certify.Applied, certify.posterior_certificate

    def with_kinds(*args: Any) -> Any:
        """As in a task of somebody whose model has attention of several kinds."""
        run = load_run(*args)
        training = dataclasses.replace(run.recipe.training, kinds=("encoder",))
        return dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, training=training))

    monkeypatch.setattr(certify, "load_run", with_kinds)
    monkeypatch.setattr(certify, "Applied", lambda *args, **how: (used.append(how), applied(*args))[1])
    monkeypatch.setattr(
        certify, "posterior_certificate", lambda *args, **how: (used.append(how), certificate(*args, **how))[1]
    )
    certify_run(folder, draws=2, prior_epochs=1, seed=7, delta=0.1)
    attached, fitted = used
    assert attached == {"kinds": ("encoder",)} and fitted["delta"] == 0.1
    assert fitted["settings"].prior == Schedule(1, 16, 0.003, 0.02, 0.3) and fitted["settings"].seed == 7
    assert fitted["settings"].posterior.weight_decay == 0, "it would pull the means to zero, not to the prior"


@pytest.mark.parametrize(
    "method",
    [
        "dropconnect",
        "blur+consistency",
        *(pytest.param(text, marks=pytest.mark.slow) for text in ("none", "r-drop", "oneof(hard,blur)", "droppath")),
    ],
)
def test_every_kind_of_method(method: str, tmp_path: Path) -> None:
    found = certify_run(make(tmp_path, method), draws=2, prior_epochs=1)
    assert found.posterior is not None and found.held_out.stochastic.value > found.held_out.stochastic.estimate


def test_a_schedule_is_at_its_end(tmp_path: Path) -> None:
    """A rate that is scheduled to rise from zero is certified with its final value."""
    folder = make(tmp_path, "noise(sigma=linear(start=0.0,end=20.0))")
    found = certify_run(folder, draws=2, prior_epochs=0)
    assert found.held_out.disagreement.estimate > found.held_out.stochastic.estimate


@pytest.mark.parametrize("part, why", [("train", "the model was trained on it"), ("validation", "it picked the epoch")])
def test_parts_that_were_used_are_refused(run: Path, part: str, why: str) -> None:
    with pytest.raises(ArgumentError, match=rf"part: expected 'test', received '{part}', which proves nothing: {why}"):
        certify_run(run, part=part)
    with pytest.raises(ArgumentError, match=r"part: expected 'test', received 'everything'"):
        certify_run(run, part="everything")


def test_a_part_with_the_checksum_of_another_is_refused(run: Path) -> None:
    loaded = load_run(run)
    request = loaded.record.request
    same = dataclasses.replace(request, checksums=request.checksums | {"test": request.checksums["train"]})
    leaky = dataclasses.replace(loaded, record=dataclasses.replace(loaded.record, request=same))
    with pytest.raises(ArgumentError, match=r"part test: its checksum is that of the train part"):
        check_held_out(leaky, "test")


def test_data_that_changed_since_is_refused(run: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    content = json.loads((copy / REQUEST).read_text())
    content["checksums"]["test"] = "0" * 64
    (copy / REQUEST).write_text(json.dumps(content))
    with pytest.raises(ArgumentError, match=r"found other test data"):
        certify_run(copy)


def test_images_that_occur_in_training(run: Path) -> None:
    """One of 96 is refused as more than one percent; one of 100 counts as an error."""
    loaded = load_run(run)
    images = {part: tensor.clone() for part, tensor in loaded.data.images.items()}
    images["test"][5] = images["train"][7]
    leaky = dataclasses.replace(loaded, data=dataclasses.replace(loaded.data, images=images))
    with pytest.raises(
        ArgumentError, match=r"part test: 1 of 96 examples occur in the training or validation part too"
    ):
        check_held_out(leaky, "test")
    longer = images | {"test": torch.cat([images["test"], torch.rand(4, *images["test"].shape[1:])])}
    labels = loaded.data.labels | {"test": torch.zeros(100, dtype=torch.long)}
    data = dataclasses.replace(loaded.data, images=longer, labels=labels, counts=loaded.data.counts | {"test": 100})
    suspects, notes = check_held_out(dataclasses.replace(loaded, data=data), "test")
    assert suspects is not None and suspects.nonzero()[0].tolist() == [5] and notes == []


def test_too_many_images_to_compare(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attentiondrop.experiments.studies.certify._COMPARED", 10)
    monkeypatch.setattr(type(load_run(run).data), "bytes_to_train", 5 * 2**29)
    found = certify_run(run, draws=2)
    assert found.posterior is None
    assert any("not compared one by one" in note for note in found.notes)
    assert any("the training part has 2.5 GiB, too much to hold in memory" in note for note in found.notes)


def test_a_model_without_known_projections_has_no_posterior(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attentiondrop.theory.gaussian_weights._FUSED", ())
    found = certify_run(run, draws=2)
    assert found.posterior is None
    assert any("no certificate from a data-dependent prior: model: expected linear" in note for note in found.notes)


def test_noisy_labels_are_mentioned(tmp_path: Path) -> None:
    folder = make(tmp_path, "hard", "data.label_noise=0.2", "training.epochs=1")
    found = certify_run(folder, draws=2, prior_epochs=1)
    assert any("training labels are noisy" in note for note in found.notes)
