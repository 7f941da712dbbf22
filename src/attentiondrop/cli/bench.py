"""`attentiondrop bench`: time attention and a training step, after checking what is timed."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench.shapes import CPU_SHAPES, CUDA_SHAPES, Shape
from ..experiments.files.whole_files import make_writable
from .extras import MissingExtraError, require

if TYPE_CHECKING:
    from ..bench.attention import Settings
    from ..bench.report import Report

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_OUT = Path("runs") / "bench"
#: Arguments that are left out of the command in a result: paths, and those that only the parser needs.
_PRIVATE = ("command", "what", "bench", "run", "traceback", "out", "commit")


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        "bench",
        help="Time attention and a training step.",
        description="Time attention and a training step against scaled_dot_product_attention. Every row is checked "
        "first; one that fails has no timing, and the command ends with status 1.",
    )
    parser.set_defaults(bench=lambda args: _ask(parser))
    kinds = parser.add_subparsers(dest="what", metavar="WHAT")
    attention = _kind(kinds, "attention", _attention, "Time attention alone: forward, backward, memory, ratios.")
    attention.add_argument(
        "--shape",
        action="extend",
        nargs="+",
        metavar="B,H,N,D[,causal][,HK]",
        help="Batch, heads, tokens and width of a head, and how many heads the keys have if fewer. Default: six shapes "
        "on a GPU, three small ones on a CPU.",
    )
    _timing(attention, seconds=1.5)
    _kernels(attention)
    length = _kind(kinds, "length", _length, "Time attention at growing lengths, and draw time, ratios and memory.")
    length.add_argument(
        "--shape", metavar="B,H,N,D[,causal][,HK]", help="The shortest shape. Default: 4,16,128,64 on a GPU."
    )
    length.add_argument(
        "--longest", type=_count, metavar="N", help="The largest length. Default: 16384 on a GPU, 1024 on a CPU."
    )
    _timing(length, seconds=1.0)
    _kernels(length)
    vit = _kind(kinds, "vit", _vit, "Time a training step of a vision transformer.")
    vit.add_argument("--model", help="A timm model. Default: vit_base_patch16_224, on a CPU vit_tiny_patch16_224.")
    vit.add_argument("--batch", type=_count, help="The batch size. Default: 256, on a CPU 4.")
    vit.add_argument(
        "--modes",
        action="extend",
        nargs="+",
        choices=("eager", "blocks", "compiled"),
        help="The model as written, with each block compiled, or compiled as a whole, which takes minutes. "
        "Default: eager blocks, on a CPU eager.",
    )
    _timing(vit, seconds=3.0)
    plot = _kind(kinds, "plot", _plot, "Draw time and memory over the length, beside a CSV file of `bench length`.")
    plot.add_argument("csv", type=Path, help="The CSV file.")
    return parser


def _ask(parser: argparse.ArgumentParser) -> int:
    """Nobody has said what to time: show what there is."""
    parser.print_help()
    return 2


def run(args: argparse.Namespace) -> int:
    """Run one of the benchmarks."""
    try:
        code: int = args.bench(args)
    except KeyboardInterrupt:
        kept = f"; {args.out} keeps what was measured" if "out" in args else ""
        print(f"attentiondrop bench: interrupted{kept}", file=sys.stderr)
        return 130
    return code


def _attention(args: argparse.Namespace) -> int:
    require(("torch", "rich"), extra="experiments")
    shapes = [Shape.parse(text) for text in args.shape or ()]
    make_writable(args.out)
    from ..bench.screen import show
    from .progress import show_progress

    with show_progress(None) as bar:
        # Loading torch takes seconds, so the bar is shown before.
        from ..bench.attention import run_attention
        from ..bench.table import all_rows, select

        settings, rows = _settings(args), select(all_rows(), args.rows)
        report = _report(args, "attention", settings)
        shapes = shapes or list(CUDA_SHAPES if settings.device == "cuda" else CPU_SHAPES)
        outcomes = run_attention(shapes, rows, settings, report, bar)
    show(report.sections)
    return _finish(report, outcomes)


def _length(args: argparse.Namespace) -> int:
    require(("torch", "rich"), extra="experiments")
    shape = Shape.parse(args.shape) if args.shape else None
    make_writable(args.out)
    from ..bench.screen import show
    from .progress import show_progress

    with show_progress(None) as bar:
        from ..bench import length
        from ..bench.attention import run_attention
        from ..bench.table import all_rows, select

        settings, rows = _settings(args), select(all_rows(), args.rows or length.LENGTH_ROWS)
        cuda = settings.device == "cuda"
        shape = shape or (length.CUDA_SHAPE if cuda else length.CPU_SHAPE)
        shapes = length.growing(shape, args.longest or (length.CUDA_LONGEST if cuda else length.CPU_LONGEST))
        report = _report(args, "length", settings)
        outcomes = run_attention(shapes, rows, settings, report, bar)
    show(report.sections)
    try:
        _draw(report.csv)
    except MissingExtraError:
        # A machine with a GPU may have no plotting library.
        print(f"No pictures without matplotlib; where it is installed: attentiondrop bench plot {report.csv}")
    return _finish(report, outcomes)


def _vit(args: argparse.Namespace) -> int:
    require(("torch", "timm", "rich"), extra="experiments")
    make_writable(args.out)
    from ..bench.screen import show
    from .progress import show_progress

    with show_progress(None) as bar:
        from ..bench.table import select
        from ..bench.vit import run_vit
        from ..bench.vit_rows import vit_rows

        args.compile = args.graph = False
        settings, rows = _settings(args), select(vit_rows(), args.rows)
        cuda = settings.device == "cuda"
        model = args.model or ("vit_base_patch16_224" if cuda else "vit_tiny_patch16_224")
        modes = args.modes or (["eager", "blocks"] if cuda else ["eager"])
        report = _report(args, "vit", settings)
        outcomes = run_vit(model, args.batch or (256 if cuda else 4), rows, modes, settings, report, bar)
    show(report.sections)
    return _finish(report, outcomes)


def _plot(args: argparse.Namespace) -> int:
    _draw(args.csv)
    return 0


def _draw(csv: Path) -> None:
    require(("matplotlib",), extra="experiments")
    from ..bench.plot import draw

    for picture in draw(csv):
        print(f"picture: {picture}")


def _settings(args: argparse.Namespace) -> Settings:
    import torch

    from ..bench.attention import Settings

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = args.dtype or ("bfloat16" if device == "cuda" else "float32")
    return Settings(device, dtype, args.repeats, args.seconds, args.compile, args.graph)


def _report(args: argparse.Namespace, kind: str, settings: Settings) -> Report:
    from ..bench.environment import environment
    from ..bench.report import ATTENTION_NOTES, VIT_NOTES, Report

    titles = {"attention": "Attention alone", "length": "Attention over the length", "vit": "A training step"}
    env = environment(settings.device, args.commit)
    name = f"{kind}-{env.slug}" + "-compiled" * settings.compile + "-graph" * settings.graph
    notes = VIT_NOTES if kind == "vit" else ATTENTION_NOTES
    return Report(args.out, name, titles[kind], _command(args), notes, env)


def _finish(report: Report, outcomes: Any) -> int:
    from ..bench.records import failed

    print(f"The same numbers: {report.csv} and {report.markdown}")
    return 1 if failed(outcomes) else 0


def _command(args: argparse.Namespace) -> str:
    """The command that repeats the run, without the output folder of this machine."""
    words = ["attentiondrop", "bench", args.what]
    for name, value in vars(args).items():
        if name in _PRIVATE or value is None or value is False:
            continue
        words.append(f"--{name}")
        words += [] if value is True else map(str, value) if isinstance(value, list) else [str(value)]
    return shlex.join(words)


def _kind(kinds: Subparsers, name: str, function: Any, text: str) -> argparse.ArgumentParser:
    parser = kinds.add_parser(name, help=text, description=text, allow_abbrev=False)
    parser.add_argument("--traceback", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.set_defaults(bench=function)
    return parser


def _timing(parser: argparse.ArgumentParser, seconds: float) -> None:
    parser.add_argument(
        "--rows",
        action="extend",
        nargs="+",
        metavar="PATTERN",
        help="Shell patterns of the names of rows, such as 'SDPA*'.",
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), help="The device. Default: cuda if there is one.")
    choices = ("bfloat16", "float16", "float32")
    parser.add_argument("--dtype", choices=choices, help="The dtype. Default: bfloat16 on a GPU, float32 on a CPU.")
    parser.add_argument("--repeats", type=_count, default=20, help="The most repeats of a row. Default: %(default)s.")
    parser.add_argument(
        "--seconds", type=_seconds, default=seconds, help="About how many seconds a row may take. Default: %(default)s."
    )
    parser.add_argument("--out", type=Path, default=_OUT, help="The folder for the results. Default: %(default)s.")
    parser.add_argument("--commit", help="The commit of the source, where git cannot tell.")


def _kernels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--compile", action="store_true", help="Time every row under torch.compile.")
    parser.add_argument("--graph", action="store_true", help="Time replays of CUDA graphs, up to 2 GiB a row.")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, received {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number > 0, received {text!r}")
    return value
