"""What the checks of the baselines reached, read from their records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tables
from record_texts import record_texts

from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.methods.groups import expanded

RECORDS = Path(__file__).parent / "records"


def study_1() -> str:
    """Study 1: more and more epochs."""
    rows = sorted((result["epochs"], accuracy(result, "validation")) for _, result in runs("cifar10-20pct-check*"))
    cells = [[str(epochs), score] for epochs, score in rows]
    return tables.listed("epochs of `none` | validation accuracy, %", cells, words=0)


def screened() -> str:
    """How many methods of the screen of study 1 have run."""
    recipe = read_recipe("evidence/cifar10-20pct", "screen")
    done = [one for one in tables.read(RECORDS.parent / "results" / "cifar10-20pct-screen").methods if one.scores]
    return f"{len(done)} of the {len(expanded(recipe.methods))} methods are done"


def cifar_100() -> str:
    """CIFAR-100: other settings than those of the reference."""
    found = []
    for request, result in runs("cifar100-check*"):
        model, training = request["recipe"]["model"]["arguments"], request["recipe"]["training"]
        pooled = "mean of the patches" if model.get("global_pool") == "avg" else "class token"
        settings = f"{training['learning_rate']:g}", f"{training['weight_decay']:g}", str(result["epochs"])
        found.append([pooled, *settings, accuracy(result, "validation"), accuracy(result, "test")])
    headings = "the head reads | learning rate | weight decay | epochs | validation accuracy, % | test accuracy, %"
    return tables.listed(headings, sorted(found, key=lambda row: float(row[-2])), words=1)


def chosen_of_cifar_100(epochs: int) -> str:
    """The test accuracy of the check with so many epochs that the validation part prefers."""
    found = [result for _, result in runs("cifar100-check*") if result["epochs"] == epochs]
    return accuracy(max(found, key=lambda result: result["validation"]["accuracy"]), "test")


def runs(pattern: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The request and the result of every run in the records of that name."""
    for file in sorted(RECORDS.glob(f"{pattern}.tar.gz")):
        texts = record_texts(file)
        for name, text in texts.items():
            if name.endswith("/result.json"):
                yield json.loads(texts[name.replace("/result.json", "/run.json")]), json.loads(text)


def accuracy(result: dict[str, Any], part: str) -> str:
    """The accuracy on a part of the data, in per cent."""
    return f"{100 * result[part]['accuracy']:.1f}"
