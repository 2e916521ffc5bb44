"""The report in a real headless Chromium, from its file: no errors, no network, by keyboard, on a phone."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from browser import MILLISECONDS, chromium, needs_chromium
from report_pages import write_report, write_results

from analysis.render import EMPTY

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_chromium

DESKTOP = {"width": 1280, "height": 900}
PHONES = (320, 390)
PAGES = "[...document.querySelectorAll('.page')].map((page) => page.id)"
SHOWN = "[...document.querySelectorAll('.page')].filter((page) => page.offsetParent).map((page) => page.id)"

# Relative luminance and contrast as WCAG 2 defines them; translucent colours are laid over what is behind.
CONTRAST = """
() => {
  const channel = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const weights = [0.2126, 0.7152, 0.0722];
  const light = (colour) => weights.reduce((sum, weight, at) => sum + weight * channel(colour[at] / 255), 0);
  const parse = (text) => {
    const numbers = text.match(/[\\d.]+/g).map(Number);
    return [numbers.slice(0, 3), numbers.length > 3 ? numbers[3] : 1];
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [colour, opacity] = parse(getComputedStyle(at).backgroundColor);
      if (opacity === 1) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *:not(svg *):not(script):not(style)")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.offsetParent) continue;
    const style = getComputedStyle(element);
    const [front, back] = [light(parse(style.color)[0]), light(behind(element))];
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    const shown = `${element.tagName}.${element.className} ${element.textContent.slice(0, 30)}`;
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${shown}`);
  }
  return poor;
}
"""


@dataclass
class Watched:
    """A page with what it complained of and what it asked the network for."""

    page: "Page"
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def evaluate(self, expression: str) -> Any:
        return self.page.evaluate(expression)

    def goto(self, identifier: str) -> None:
        self.page.goto(self.page.url.split("#")[0] + f"#{identifier}")

    def press(self, key: str, times: int = 1) -> None:
        for _ in range(times):
            self.page.keyboard.press(key)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = write_results(tmp_path_factory.mktemp("results") / "cpu")
    write_report(folder, folder / "report.html")
    return (folder / "report.html").as_uri()


def open_report(browser: "Browser", address: str, **settings: Any) -> Watched:
    context = browser.new_context(**{"viewport": DESKTOP, **settings})
    context.set_default_timeout(MILLISECONDS)
    watched = Watched(context.new_page())
    watched.page.on("console", lambda message: watched.complaints.append(message.text))
    watched.page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    watched.page.on("request", lambda request: watched.requests.append(request.url))
    watched.page.goto(address)
    return watched


@pytest.fixture
def opened(browser: "Browser", report: str) -> Iterator[Watched]:
    watched = open_report(browser, report)
    yield watched
    watched.page.context.close()


def test_opens_without_complaint_or_network_and_shows_one_page_at_a_time(
    opened: Watched, report: str
) -> None:
    assert opened.evaluate(SHOWN) == ["overview"]
    for identifier in opened.evaluate(PAGES):
        opened.goto(identifier)
        assert opened.evaluate(SHOWN) == [identifier]
        assert opened.evaluate("window.scrollY") == 0
        assert opened.evaluate("document.querySelectorAll('nav a[aria-current=page]').length") == 1
    assert opened.complaints == []
    assert {request.split("#")[0] for request in opened.requests} == {report}


def test_a_link_to_a_table_or_run_shows_its_page_there(opened: Watched) -> None:
    opened.goto("table-table4")
    assert opened.evaluate(SHOWN) == ["tables"]
    assert abs(opened.evaluate("document.getElementById('table-table4').getBoundingClientRect().top")) < 100
    opened.goto("run-sao-1")
    assert opened.evaluate(SHOWN) == ["row-sao"]
    opened.goto("no-such-place")
    assert opened.evaluate(SHOWN) == ["overview"]
    opened.goto("all")
    assert opened.evaluate(SHOWN) == opened.evaluate(PAGES)


def test_every_link_inside_works(opened: Watched) -> None:
    broken = "[...document.querySelectorAll('a[href^=\"#\"]')].map((link) => link.hash.slice(1))"
    known = set(opened.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id)"))
    assert set(opened.evaluate(broken)) - known == {"all"}


def test_skip_link_comes_first_and_leads_to_the_content(opened: Watched) -> None:
    opened.press("Tab")
    assert opened.evaluate("document.activeElement.textContent") == "Skip to content"
    assert opened.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    opened.press("Enter")
    opened.press("Tab")
    assert opened.evaluate("document.activeElement.closest('main') !== null")
    assert opened.evaluate(SHOWN) == ["overview"]


def test_pages_are_reached_by_keyboard_and_focus_is_always_visible(opened: Watched) -> None:
    seen = []
    for _ in range(25):
        opened.press("Tab")
        outline = opened.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        width = opened.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)")
        assert outline == "solid" and width >= 2
        seen.append(opened.evaluate("document.activeElement.textContent"))
        if seen[-1] == "Rows":
            break
    assert seen[:4] == ["Skip to content", "SAO reproduction", "Overview", "Claims"]
    opened.press("Enter")
    opened.page.wait_for_function("location.hash === '#rows'")
    assert opened.evaluate(SHOWN) == ["rows"]
    assert opened.evaluate("document.activeElement.textContent") == "Rows", "reading goes on at the heading"


def column(opened: Watched, table: str, number: int) -> list[str]:
    script = f"""[...document.querySelectorAll('{table} tbody tr')].filter((row) => !row.hidden)
        .map((row) => row.cells[{number}].textContent.trim())"""
    return opened.evaluate(script)


def test_tables_are_sorted_by_keyboard_numbers_as_numbers_and_dashes_last(opened: Watched) -> None:
    opened.goto("table-table1")
    table = "#table-table1 > .scroll > table"
    before = column(opened, table, 1)
    opened.page.focus(f"{table} thead th:nth-child(2) button")
    opened.press("Enter")
    rising = [float(text.split(" ")[0]) for text in column(opened, table, 1) if text != EMPTY]
    assert rising == sorted(rising) and len(rising) == 11
    assert column(opened, table, 1)[-1] == EMPTY and set(column(opened, table, 1)) == set(before)
    assert opened.evaluate(f"document.querySelector('{table} thead th:nth-child(2)').ariaSort") == "ascending"
    opened.press("Space")
    assert [float(text.split(" ")[0]) for text in column(opened, table, 1) if text != EMPTY] == rising[::-1]
    assert column(opened, table, 1)[-1] == EMPTY
    opened.press("Tab")
    opened.press("Enter")
    sorts = f"[...document.querySelectorAll('{table} thead th')].map((head) => head.ariaSort)"
    assert opened.evaluate(sorts)[:3] == [None, None, "ascending"]


def test_claims_are_sorted_in_their_order(opened: Watched) -> None:
    opened.goto("claims")
    opened.page.focus("#claims thead th:first-child button")
    opened.press("Enter")
    names = [text.split(" ")[0] for text in column(opened, "#claims table", 0)]
    assert list(dict.fromkeys(names)) == [f"C{number}" for number in range(1, 17)], "C2 before C10"


def test_tables_are_filtered_by_keyboard(opened: Watched) -> None:
    opened.goto("claims")
    opened.page.focus("#claims input[type=search]")
    opened.page.keyboard.type("NOT run figure 4")
    shown = column(opened, "#claims table", 0)
    assert shown == ["C4 VAPO", "C6 explained variance", "C7 gradient norm"]
    assert opened.page.inner_text("#claims [role=status]") == "3 of 24 lines"
    opened.press("Control+a")
    opened.press("Delete")
    assert len(column(opened, "#claims table", 0)) == 24
    assert opened.page.inner_text("#claims [role=status]") == ""


def test_tokens_are_read_by_arrow_keys_and_coloured_by_choice(opened: Watched) -> None:
    opened.goto("row-sao")
    strip = "#row-sao [data-tokens]"
    colour = f"getComputedStyle(document.querySelector('{strip} b')).backgroundColor"
    by_advantage = opened.evaluate(colour)
    opened.page.focus(strip)
    opened.press("ArrowRight", 2)
    reading = "document.querySelector('#row-sao .reading').textContent"
    assert "value 0.500, advantage -0.200" in opened.evaluate(reading)
    opened.press("Home")
    assert "value 0.250, advantage +0.100" in opened.evaluate(reading)
    line = f"getComputedStyle(document.querySelector('{strip} b.a-2')).borderBottomStyle"
    assert opened.evaluate(line) == "dotted", "sign is not told by colour alone"
    opened.page.focus("#row-sao input[value=advantage]")
    opened.press("ArrowRight")
    assert opened.evaluate("document.querySelector('#row-sao input[value=value]').checked")
    assert opened.evaluate(colour) != by_advantage
    assert not opened.page.is_visible("#row-sao .legend.for-advantage")
    assert opened.page.is_visible("#row-sao .legend.for-value")


@pytest.mark.parametrize("width", PHONES)
def test_nothing_is_wider_than_a_phone(browser: "Browser", report: str, width: int) -> None:
    phone = open_report(
        browser, report, viewport={"width": width, "height": 700}, has_touch=True, is_mobile=True
    )
    for identifier in phone.evaluate(PAGES):
        phone.goto(identifier)
        assert phone.evaluate("document.documentElement.scrollWidth") <= width, identifier
    phone.goto("tables")
    boxes = "[...document.querySelectorAll('#tables .scroll')].filter((box) => box.offsetParent)"
    assert phone.evaluate(f"{boxes}.some((box) => box.scrollWidth > box.clientWidth)"), (
        "tables scroll by themselves"
    )
    assert phone.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") >= 16
    phone.page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(browser: "Browser", report: str, scheme: str) -> None:
    page = open_report(browser, f"{report}#all", color_scheme=scheme)
    assert page.evaluate(CONTRAST) == []
    background = re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert (int(background[0]) < 60) == (scheme == "dark")
    page.page.context.close()


def test_headings_names_and_labels(opened: Watched) -> None:
    for identifier in opened.evaluate(PAGES):
        headings = f"[...document.getElementById('{identifier}').querySelectorAll('h1, h2, h3, h4')]"
        levels = opened.evaluate(f"{headings}.map((heading) => Number(heading.tagName[1]))")
        assert levels[0] == 1 and levels.count(1) == 1, identifier
        assert all(after - before <= 1 for before, after in pairwise(levels)), identifier
    unnamed = {
        "svg": "!(one.ariaLabel || one.ariaHidden)",
        "button": "!one.textContent.trim()",
        "input": "!one.labels.length",
        "a": "!(one.ariaLabel || one.textContent.trim())",
        ".scroll": "!one.ariaLabel || one.tabIndex !== 0",
        "table": "!one.querySelector('th[scope=col]')",
    }
    for kind, fault in unnamed.items():
        found = f"[...document.querySelectorAll('{kind}')].filter((one) => {fault}).length"
        assert opened.evaluate(found) == 0, kind
    assert opened.evaluate("document.documentElement.lang") == "en"
    assert opened.evaluate("document.querySelectorAll('main').length") == 1


def test_everything_can_be_read_without_script(browser: "Browser", report: str) -> None:
    page = open_report(browser, report, java_script_enabled=False)
    for identifier in (
        "overview",
        "claims",
        "claim-C16",
        "tables",
        "figures",
        "row-sao",
        "decisions",
        "provenance",
    ):
        assert page.page.is_visible(f"#{identifier}")
    assert page.page.locator("#row-sao b[title*='advantage -0.200']").first.is_visible()
    assert page.complaints == []
    page.page.context.close()


def test_print_shows_the_content_in_dark_ink(browser: "Browser", report: str) -> None:
    page = open_report(browser, f"{report}#tables", color_scheme="dark")
    page.page.emulate_media(media="print", color_scheme="dark")
    assert not page.page.is_visible("nav") and not page.page.is_visible("#tables .filter")
    assert page.page.is_visible("#table-table1")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert (
        page.evaluate("getComputedStyle(document.querySelector('#table-table1 td')).color") == "rgb(0, 0, 0)"
    )
    page.page.context.close()
