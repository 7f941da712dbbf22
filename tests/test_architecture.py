"""Imports run one way, and names tell modules apart: what `docs/architecture.md` says, checked."""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import attentiondrop

SOURCE = Path(attentiondrop.__file__).parent
PACKAGE = "attentiondrop"

#: Parts of `attentiondrop.torch`, lowest first: each may import what stands before it, and itself.
TORCH = (
    "nested_values",
    "untouched",
    "draws",
    "call",
    "kernels",
    "eager",
    "fused",
    "dispatch",
    "known_routes",
    "functional",
    "modules",
    "rates",
    "attach",
    "consistency",
)
#: Parts of `attentiondrop.keras`, in the same order.
KERAS = (
    "rates",
    "call",
    "functional",
    "reminders",
    "sites",
    "layers",
    "attach",
    "consistency",
    "callbacks",
)
#: Parts of `attentiondrop.experiments`, in the same order.
EXPERIMENTS = ("failures", "files", "tasks", "methods", "config", "train", "runs", "studies", "analysis", "report")
#: Within `attentiondrop.experiments.tasks`: what every task shares, what tasks on text share, the tasks, and the list.
SHARED_BY_TASKS = (
    "metrics",
    "exhibits",
    "draw_keys",
    "optional_packages",
    "missing_files",
    "interface",
    "checkpoint_files",
    "eval_mode",
    "class_scores",
    "shown_attention",
    "text",
    "from_transformers",
)
TASKS = (*SHARED_BY_TASKS, "classification", "text_classification", "language", "translation", "registry")
#: Package -> the order of its parts.
ORDERS = {"torch": TORCH, "keras": KERAS, "experiments": EXPERIMENTS, "experiments.tasks": TASKS}


def modules() -> dict[str, Path]:
    """Dotted name -> file."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = (PACKAGE, *path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def imported(name: str) -> list[str]:
    """The modules of this package that a module imports, inside of functions too, but not for types alone."""
    return list(_imported(name))


def _imported(name: str) -> Iterator[str]:
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in _runtime_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                target = inner if inner in MODULES else base
                if target in MODULES and target != name:
                    yield target
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)


def _runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _runtime_nodes(node)


def test_no_import_cycles() -> None:
    graph = {name: set(imported(name)) for name in MODULES}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for target in sorted(graph[name]):
                visit(target, (*path, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


@pytest.mark.parametrize(("package", "order"), ORDERS.items())
def test_imports_run_one_way(package: str, order: tuple[str, ...]) -> None:
    above = f"{PACKAGE}.{package}."

    def place(name: str) -> int | None:
        return order.index(name.removeprefix(above).split(".")[0]) if name.startswith(above) else None

    for name in MODULES:
        here = place(name)
        for target in imported(name):
            there = place(target)
            if here is not None and there is not None:
                assert there <= here, f"{name} imports {target}"


@pytest.mark.parametrize(("package", "order"), ORDERS.items())
def test_every_part_has_its_place(package: str, order: tuple[str, ...]) -> None:
    above = f"{PACKAGE}.{package}."
    assert {name.removeprefix(above).split(".")[0] for name in MODULES if name.startswith(above)} == set(order)


@pytest.mark.parametrize("package", ["torch", "keras", "experiments"])
def test_the_page_lists_every_part_in_this_order(package: str) -> None:
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    _, _, below = page.partition(f" of `{PACKAGE}.{package}` | what it does |\n|---|---|\n")
    rows = itertools.takewhile(lambda line: line.startswith("|"), below.splitlines())
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert listed == list(ORDERS[package])


def test_nothing_outside_its_package_imports_a_task() -> None:
    """Whoever uses a task asks the registry for it."""
    inside = f"{PACKAGE}.experiments.tasks."
    tasks = tuple(inside + part for part in TASKS if part not in (*SHARED_BY_TASKS, "registry"))
    for name in MODULES:
        if not name.startswith(inside):
            assert not [target for target in imported(name) if target.startswith(tasks)], name


@pytest.mark.parametrize("part", ["torch", "keras", "experiments"])
def test_no_two_modules_of_one_name(part: str) -> None:
    names = [name.rpartition(".")[2] for name, path in MODULES.items() if name.startswith(f"{PACKAGE}.{part}.")]
    doubled = [name for name, count in Counter(names).items() if count > 1]
    assert not doubled
    assert not set(names) & set(sys.stdlib_module_names)


def test_nothing_imports_the_experiments() -> None:
    allowed = (f"{PACKAGE}.experiments", f"{PACKAGE}.cli")
    for name in MODULES:
        if not name.startswith(allowed):
            assert not [target for target in imported(name) if target.startswith(f"{PACKAGE}.experiments")], name


def test_tuples_of_a_call_have_no_properties() -> None:
    """torch 2.10, the oldest that is supported, cannot compile them. (The tests run with a newer torch.)"""
    classes = [
        node
        for path in (SOURCE / "torch" / "call").glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "NamedTuple" for base in node.bases)
    ]
    assert {"Inputs", "Active", "Visibility", "Call"} <= {node.name for node in classes}
    members = [(node.name, member) for node in classes for member in node.body if isinstance(member, ast.FunctionDef)]
    assert [(name, member.name) for name, member in members if member.decorator_list] == []
