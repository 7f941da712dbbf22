"""The page in a real browser: nothing is cut off or fetched; readable in light and dark mode, on phones and on paper."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attentiondrop.experiments.report import write_report

WIDTHS = (360, 800, 1280)
_VISIBLE = """
() => [...document.querySelectorAll('svg.plot')].map(svg => {
    const box = svg.getBoundingClientRect();
    const drawn = [...svg.querySelectorAll('.line, .marker')].filter(path => {
        const part = path.getBoundingClientRect(), style = getComputedStyle(path);
        const paint = path.classList.contains('line') ? style.stroke : style.fill;
        return part.width + part.height > 1 && paint !== 'none' && !paint.startsWith('rgba(0, 0, 0, 0');
    });
    const inside = drawn.every(path => {
        const part = path.getBoundingClientRect();
        return part.left >= box.left - 6 && part.right <= box.right + 6 && part.top >= box.top - 6;
    });
    return {width: box.width, height: box.height, drawn: drawn.length, inside};
})
"""
_TEXT_OUTSIDE = """
() => [...document.querySelectorAll('svg.plot text')].filter(text => {
    const box = text.ownerSVGElement.getBoundingClientRect(), part = text.getBoundingClientRect();
    return part.left < box.left - 2 || part.right > box.right + 8 || part.bottom > box.bottom + 4;
}).map(text => text.textContent)
"""
_COLOURS = """
selectors => selectors.map(selector => {
    const element = document.querySelector(selector), style = getComputedStyle(element);
    return [element instanceof SVGTextElement ? style.fill : style.color, getComputedStyle(document.body).backgroundColor];
})
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser of the system, controlled by playwright and started once."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("playwright is not installed: pip install playwright")
    with sync_playwright() as driver:
        # The sandbox of the browser does not run as root, and tests in containers run as root.
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = driver.chromium.launch(executable_path=found, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    make_full_study = request.getfixturevalue("full_study_maker")
    return write_report(make_full_study(tmp_path_factory.mktemp("browser") / "study")).html


class Opened:
    """A page, with its messages and requests."""

    def __init__(self, browser: Any, path: Path, width: int, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.route("**/*", self._answer)
        self.page.goto(path.as_uri())

    def _answer(self, route: Any) -> None:
        self.asked.append(route.request.url)
        route.continue_()

    def rows(self, caption: str) -> dict[str, list[str]]:
        """The texts of a table, by the first cell of each row, as a reader sees them."""
        table = self.page.locator("table").filter(has=self.page.locator("caption", has_text=caption)).first
        cells = table.evaluate("t => [...t.rows].map(row => [...row.cells].map(cell => cell.innerText.trim()))")
        return {row[0]: row[1:] for row in cells}


def luminance(colour: str) -> float:
    """The relative luminance of `rgb(r, g, b)`, by WCAG."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_every_screen_and_asks_for_nothing(chromium: Any, report: Path, width: int) -> None:
    opened = Opened(chromium, report, width)
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.body.scrollWidth") <= width
    plots = page.evaluate(_VISIBLE)
    assert len(plots) == 1 + 6 + 7 + 1 + 1
    for plot in plots:
        assert plot["width"] > 120 and plot["height"] > 80 and plot["drawn"] > 0 and plot["inside"]
    assert page.evaluate(_TEXT_OUTSIDE) == []
    # A table that is too wide scrolls in its own box, and can be reached by keyboard.
    assert page.evaluate("[...document.querySelectorAll('.scroll')].every(box => box.tabIndex === 0)")
    assert opened.said == []
    assert opened.asked == [report.as_uri()]
    page.close()


def test_tables_read_as_they_should(chromium: Any, report: Path) -> None:
    opened = Opened(chromium, report, 1280)
    rows = opened.rows("Test accuracy, mean")
    assert rows["Method"][:3] == ["Finished", "Accuracy,\u00a0%", "Difference, points [95\u00a0%]"]
    assert rows["none"][0] == "5 of 5" and rows["none"][2] == "baseline"
    assert rows["hard(p=0.1,k=5)"][2].endswith("] *")
    assert rows["noise(sigma=0.2)"][0] == "2 of 5"
    failed = opened.rows("runs without scores")
    assert failed["noise(sigma=0.2)"][2:] == ["missing", "no such run in the folder yet"]
    assert opened.page.locator("h1").inner_text() == "digits demo: comparison and ablation"
    # Every bar of the columns of intervals, in both tables, has its dot.
    assert opened.page.locator("table:visible circle.interval.dot").count() == 2 * 6
    assert opened.page.locator("table:visible path.interval.bar").count() == 2 * 6
    opened.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_stand_out_in_both_schemes(chromium: Any, report: Path, scheme: str) -> None:
    opened = Opened(chromium, report, 800, scheme)
    page = opened.page
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(background) < 0.1) == (scheme == "dark")
    texts = [
        "body",
        "h1",
        "td",
        "thead th",
        "caption",
        "figcaption",
        ".notes li",
        ".hint",
        ".choice label",
        "svg .tick",
        "svg .title",
        "a",
    ]
    for selector, (colour, behind) in zip(texts, page.evaluate(_COLOURS, texts), strict=True):
        assert contrast(colour, behind) >= 4.5, selector
    colours = page.evaluate(
        "[...Array(8).keys()].map(n => { const e = document.body.appendChild(document.createElement('i')); "
        "e.className = `c${n}`; return getComputedStyle(e).color; })"
    )
    assert len(set(colours)) == 8
    assert all(contrast(colour, background) >= 3 for colour in colours)
    # The text is readable even in the most coloured cell of a heat map.
    cell = page.evaluate(
        "() => [...document.querySelectorAll('.heat .above')].map(c => [getComputedStyle(c).color, "
        "getComputedStyle(c).backgroundColor]).pop()"
    )
    red, green, blue, alpha = (float(part) for part in cell[1][5:-1].split(","))
    base = [int(part) for part in background[4:-1].split(",")]
    mixed = [round(alpha * top + (1 - alpha) * under) for top, under in zip((red, green, blue), base, strict=True)]
    assert contrast(cell[0], f"rgb({mixed[0]}, {mixed[1]}, {mixed[2]})") >= 4.5
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_is_white_and_nothing_is_cut_off(chromium: Any, report: Path, scheme: str) -> None:
    opened = Opened(chromium, report, 688, scheme)  # A4 less its margins, in CSS pixels
    page = opened.page
    page.emulate_media(media="print", color_scheme=scheme)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert contrast(ink, "rgb(255, 255, 255)") >= 7
    wide = "[...document.querySelectorAll('table, pre, svg')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
    assert page.evaluate(f"{wide}.map(e => e.textContent.slice(0, 60))") == []
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
    page.close()


def test_the_recipe_unfolds(chromium: Any, report: Path) -> None:
    page = Opened(chromium, report, 800).page
    recipe = page.locator("details pre")
    assert not recipe.is_visible()
    page.locator("summary").click()
    assert recipe.is_visible() and '"weight_decay": 0.05' in recipe.inner_text()
    page.close()


def test_the_baseline_of_the_differences_is_chosen_with_the_mouse_or_the_keyboard(chromium: Any, report: Path) -> None:
    page = Opened(chromium, report, 1280).page
    section = page.locator("#differences")
    shown = section.locator("table:visible caption")
    group = section.get_by_role("group", name="Differences to")
    assert group.get_by_role("radio").count() == section.locator("table").count() == 7
    assert shown.all_inner_texts()[0].startswith("Paired differences to none,") and shown.count() == 1
    group.get_by_role("radio", name="hard(p=0.1,k=5)", exact=True).check()
    assert shown.all_inner_texts()[0].startswith("Paired differences to hard(p=0.1,k=5),") and shown.count() == 1
    page.keyboard.press("ArrowDown")
    assert shown.all_inner_texts()[0].startswith("Paired differences to blur(sigma_max=0.5),") and shown.count() == 1
    group.get_by_role("radio").last.check()
    assert shown.all_inner_texts()[0].startswith("Paired differences to dropout(p=0.1)+hard") and shown.count() == 1
    # The next stop of the keyboard is the table that is shown.
    page.keyboard.press("Tab")
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused.startswith("Paired differences to dropout(p=0.1)+hard")
    # The table needs no scrolling on a laptop.
    assert section.locator(".scroll:visible").evaluate("box => box.scrollWidth <= box.clientWidth")
    # Paper has the table that is shown, and nothing to choose.
    page.emulate_media(media="print")
    assert shown.count() == 1 and not group.is_visible() and not section.locator(".hint").is_visible()
    page.close()
