"""Figures of the book: one style, Chinese glyphs included, and the map that opens each chapter."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from IPython.display import display
from jaxtyping import Float
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch import Tensor

# Okabe & Ito's palette, told apart by colour-blind readers.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
)
COLORS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
INK, PALE, GREY = "#333333", "#F1F3F5", "#8A9299"
# Fill, text and edge of a box on a map.
LIT, UNLIT = (BLUE, "white", BLUE), (PALE, INK, "#B8BEC4")

_FONT = Path(__file__).parent / "fonts" / "NotoSansSC-Common.otf"
font_manager.fontManager.addfont(_FONT)

STYLE: Any = {
    "font.family": ["DejaVu Sans", font_manager.FontProperties(fname=_FONT).get_name()],
    "font.size": 10,
    "axes.prop_cycle": cycler(color=COLORS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
}


def figure(
    width: float = 6.0, height: float = 3.2, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, Any]:
    """A figure in the book's style and its axes, as `matplotlib.pyplot.subplots` gives them.

    Args:
        width: In inches; more than 6.5 is too small to read on a phone.
        height: In inches.
        options: Passed on to `Figure.subplots`.
    """
    matplotlib.rcParams.update(STYLE)
    new = Figure(figsize=(width, height))
    return new, new.subplots(rows, columns, **options)


def show(picture: Figure, alt: str) -> None:
    """Display a figure in the notebook, with `alt` for those who cannot see it."""
    png = io.BytesIO()
    picture.savefig(png, format="png", dpi=192, metadata={"Software": None})
    display(
        {"image/png": base64.b64encode(png.getvalue()).decode(), "text/plain": alt},
        raw=True,
        metadata={"image/png": {"width": round(picture.get_figwidth() * 96)}},
    )


def heatmap(
    axes: Axes,
    matrix: Float[Tensor, "rows columns"],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    numbers: bool = False,
    high: float | None = 1.0,
) -> None:
    """Draw a matrix of weights, from white (0) to blue (`high`), with a label for each line."""
    image = matrix.detach().float().cpu().numpy()
    axes.imshow(image, cmap="Blues", vmin=0.0, vmax=high, aspect="auto")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if numbers:
        top = image.max() if high is None else high
        for row, line in enumerate(image):
            for column, number in enumerate(line):
                color = "white" if number > 0.6 * top else INK
                axes.text(column, row, f"{number:.2f}", ha="center", va="center", color=color)


def _box(
    axes: Axes,
    place: tuple[float, float, float, float],
    text: str,
    colors: tuple[str, str, str],
) -> None:
    x, y, width, height = place
    fill, ink, edge = colors
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.7",
            facecolor=fill,
            edgecolor=edge,
            linewidth=1.0,
            zorder=3,
        )
    )
    axes.text(
        x + width / 2,
        y + height / 2,
        text,
        ha="center",
        va="center",
        color=ink,
        fontsize=8.5,
        zorder=4,
    )


def _arrow(axes: Axes, xs: Sequence[float], ys: Sequence[float], lit: bool = False) -> None:
    color, width = (BLUE, 2.0) if lit else (GREY, 1.0)
    axes.plot(xs, ys, color=color, linewidth=width, zorder=2, solid_joinstyle="round")
    axes.annotate(
        "",
        (xs[-1], ys[-1]),
        (xs[-2], ys[-2]),
        zorder=2,
        arrowprops={"arrowstyle": "-|>", "color": color, "shrinkA": 0, "shrinkB": 0},
    )


def _frame(axes: Axes, place: tuple[float, float, float, float], text: str) -> None:
    x, y, width, height = place
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=1.2",
            facecolor="none",
            edgecolor=GREY,
            linewidth=1.0,
            linestyle=(0, (4, 3)),
        )
    )
    axes.text(x + width - 0.6, y + height + 0.6, text, fontsize=8, va="bottom", ha="right")


def model_map(lit: str) -> Figure:
    """The whole Transformer with one module lit.

    Args:
        lit: A module of this package: "embeddings", "positional", "output", "attention",
            "multi_head", "feed_forward", "normalization", "residual", "masks", "training"; or
            "model" for all of it.

    Raises:
        ValueError: If there is no such module on the map.
    """
    picture, axes = figure(5.6, 5.8)
    axes.set(xlim=(0, 56), ylim=(0, 62))
    axes.axis("off")
    drawn = set()

    def color_of(module: str) -> tuple[str, str, str]:
        drawn.add(module)
        on = lit == module or (lit == "model" and module != "training")
        return LIT if on else UNLIT

    def box(module: str, x: float, y: float, width: float, height: float, text: str) -> None:
        _box(axes, (x, y, width, height), text, color_of(module))

    def line(xs: Sequence[float], ys: Sequence[float], module: str | None = None) -> None:
        _arrow(axes, xs, ys, module is not None and color_of(module) == LIT)

    def frame(x: float, y: float, height: float, text: str) -> None:
        _frame(axes, (x, y, 24, height), text)

    def attention(x: float, y: float, text: str) -> None:
        box("multi_head", x, y, 16, 4.6, "")
        _, ink, _ = color_of("multi_head")
        axes.text(x + 8, y + 3.6, text, ha="center", va="center", color=ink, fontsize=7.5, zorder=4)
        box("attention", x + 1, y + 0.5, 9.6, 2.2, "attention")
        box("masks", x + 11, y + 0.5, 4.2, 2.2, "mask")

    def add_and_norm(x: float, y: float, below: float) -> None:
        box("residual", x, y, 7.6, 2.4, "add")
        box("normalization", x + 8.4, y, 7.6, 2.4, "norm")
        line([x + 8, x - 2.2, x - 2.2, x], [below, below, y + 1.2, y + 1.2], "residual")

    encoder, decoder = 6.0, 34.0
    for x, ids in ((encoder, "我  爱  你"), (decoder, "<bos>  I  love  you")):
        axes.text(x + 8, 0.9, ids, ha="center", va="center", fontsize=10)
        line([x + 8, x + 8], [2.0, 3.4])
        box("embeddings", x, 3.4, 16, 2.8, "embedding × √d")
        line([x + 8, x + 8], [6.2, 7.6])
        box("positional", x, 7.6, 16, 2.8, "+ position")

    def sublayer(x: float, y: float, kind: str) -> float:
        """Draw one sublayer with its input at height y; return the height of its output."""
        line([x + 8, x + 8], [y, y + 2.4])
        if kind == "feed forward":
            box("feed_forward", x, y + 2.4, 16, 2.8, kind)
            top = y + 5.2
        else:
            attention(x, y + 2.4, kind)
            top = y + 7.0
        line([x + 3.8, x + 3.8], [top, top + 1.4])
        add_and_norm(x, top + 1.4, y + 1.2)
        line([x + 7.6, x + 8.4], [top + 2.6, top + 2.6])
        return top + 3.8

    top = sublayer(encoder, 10.4, "multi-head self-attention")
    top = sublayer(encoder, top, "feed forward")
    frame(2.0, 11.0, top - 10.6, "encoder layer × 6")
    memory = top
    top = sublayer(decoder, 10.4, "multi-head self-attention")
    cross = top
    top = sublayer(decoder, top, "multi-head cross-attention")
    top = sublayer(decoder, top, "feed forward")
    frame(30.0, 11.0, top - 10.6, "decoder layer × 6")
    line(
        [encoder + 8, encoder + 8, 28.0, 28.0, decoder],
        [memory, memory + 4.5, memory + 4.5, cross + 4.7, cross + 4.7],
    )
    axes.text(encoder + 8, memory + 5.2, "memory", ha="center", fontsize=8)

    line([decoder + 8, decoder + 8], [top, top + 3.0])
    box("output", decoder, top + 3.0, 16, 2.8, "linear, softmax")
    line([decoder + 8, decoder + 8], [top + 5.8, top + 7.4])
    axes.text(decoder + 8, top + 8.6, "I  love  you  <eos>", ha="center", va="center", fontsize=10)
    box("training", encoder, top + 6.6, 16, 3.6, "loss\nagainst the labels")
    line([decoder - 0.5, encoder + 16], [top + 8.4, top + 8.4], "training")
    axes.set_ylim(0, top + 10.6)

    if lit not in drawn | {"model"}:
        raise ValueError(f"lit must be one of {sorted(drawn | {'model'})}, got {lit!r}")
    return picture


def work_map(lit: str) -> Figure:
    """What stands around the Transformer when it works, with one module lit.

    Args:
        lit: "data", "decoding", "translator" or "trainer".

    Raises:
        ValueError: If there is no such module on the map.
    """
    modules = ("data", "decoding", "translator", "trainer")
    if lit not in modules:
        raise ValueError(f"lit must be one of {sorted(modules)}, got {lit!r}")
    picture, axes = figure(6.2, 2.9)
    axes.set(xlim=(0, 62), ylim=(0, 29))
    axes.axis("off")

    def box(module: str, x: float, y: float, width: float, text: str) -> None:
        on = module == lit or (lit == "translator" and y < 8)
        _box(axes, (x, y, width, 5.0), text, LIT if on else UNLIT)

    axes.text(4.2, 23.5, "我爱你\nI love you\n…", ha="center", va="center", fontsize=9)
    _arrow(axes, [8.6, 11.5], [23.5, 23.5])
    box("data", 11.5, 21, 12.5, "parallel text,\nsubwords, batches")
    _arrow(axes, [24, 26.5], [23.5, 23.5])
    box("trainer", 26.5, 21, 14, "training steps,\ncheckpoints")
    _arrow(axes, [31, 31], [21, 10], lit == "trainer")
    axes.text(30.4, 15.6, "weights", ha="right", va="center", fontsize=8)
    _arrow(axes, [36, 36], [10, 21], lit == "trainer")
    axes.text(36.6, 15.6, "loss, BLEU", ha="left", va="center", fontsize=8)

    axes.text(3.2, 7.5, "我爱你", ha="center", va="center", fontsize=9)
    _arrow(axes, [6.2, 10.5], [7.5, 7.5])
    box("data", 10.5, 5, 10.5, "subwords")
    _arrow(axes, [21, 24.5], [7.5, 7.5])
    box("model", 24.5, 5, 18, "Transformer\nchapters 1–10")
    _arrow(axes, [42.5, 44.5], [7.5, 7.5])
    box("decoding", 44.5, 5, 9, "search")
    _arrow(axes, [53.5, 56.4], [7.5, 7.5])
    axes.text(59.2, 7.5, "I love\nyou", ha="center", va="center", fontsize=9)
    _frame(axes, (8.6, 2.6, 46.6, 8.8), "translator")
    return picture
