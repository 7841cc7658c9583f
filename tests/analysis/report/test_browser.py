"""The page in a real browser, offline, from the example run with hostile names planted into its
files.
"""

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpscope.analysis.report.build import make_report, write_report
from dpscope.analysis.runs.run_data import load_run
from dpscope.profiling.machine.link_specifications import parse_link
from tests.helpers.browser import CHROMIUM, Browser, browser
from tests.helpers.paths import EXAMPLE_RUN

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium)"
    ),
]

UNFOLD = "document.querySelectorAll('.folded > details').forEach(section => section.open = true)"
HOSTILE = "</script><script>window.ran = 1</script><img src=x onerror='window.ran = 2'>"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the example run, its longest operator and its model renamed."""
    run = tmp_path_factory.mktemp("hostile") / "run"
    shutil.copytree(EXAMPLE_RUN, run)
    for path in run.glob("cells/ddp-d2-b8/repeat0/traces/*.json.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        for event in trace["traceEvents"]:
            if event.get("name") == "aten::conv2d":
                event["name"] = HOSTILE
        path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    manifest = run / "manifest.json"
    stored = json.loads(manifest.read_text())
    stored["config"]["workload"]["model"] = HOSTILE
    stored["environment"]["settings"] = {"NCCL_DEBUG": HOSTILE}
    manifest.write_text(json.dumps(stored))
    return write_report(make_report(load_run(run), parse_link("1GB/s")))


@pytest.fixture(scope="module")
def opened(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as chromium:
        chromium.show(1280)
        chromium.open(page)
        chromium.run(UNFOLD)
        yield chromium


def test_it_loads_without_error_and_asks_for_nothing(opened: Browser, page: Path) -> None:
    assert opened.run("document.querySelectorAll('section').length") > 8
    assert opened.errors == []
    assert {url for url in opened.requests if not url.startswith("data:")} == {page.as_uri()}


def test_names_from_files_are_text(opened: Browser) -> None:
    assert opened.run("window.ran") is None
    # the data, and two of the page's own
    assert opened.run("document.querySelectorAll('script').length") == 3
    shown = opened.run("document.body.innerText")
    figures = opened.run("document.querySelectorAll('figure svg').length")
    # in the setting, above the answers, twice in the environment, and below each figure
    assert shown.count(HOSTILE) == 4 + figures
    bars = "JSON.parse(document.getElementById('timeline-data').textContent).flatMap(c => c.lanes).flatMap(l => l.bars)"
    assert opened.run(f"{bars}.filter(bar => bar[3] === {json.dumps(HOSTILE)}).length") >= 2
    assert opened.errors == []


def middle(opened: Browser, element: str) -> tuple[float, float]:
    """Where the middle of an element is once it is scrolled into view."""
    x, y = opened.run(
        f"(() => {{ {element}.scrollIntoView({{block: 'center'}}); const r = {element}.getBoundingClientRect();"
        " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    return x, y


def shown_range(opened: Browser) -> str:
    text: str = opened.run(
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => "
        "done(document.getElementById('timeline-range').textContent))))"
    )
    return text


def test_the_timeline_zooms_moves_and_names(opened: Browser) -> None:
    view = "document.getElementById('timeline-view')"
    cells = opened.run(
        "[...document.getElementById('timeline-cell').options].map(option => option.text)"
    )
    assert cells[0] == "ddp-d2-b8"  # the cell that the verdict speaks of
    opened.run("document.getElementById('timeline-cell').value = '0'")
    opened.run("document.getElementById('timeline-cell').dispatchEvent(new Event('change'))")
    whole = shown_range(opened)
    assert whole.startswith("0 µs to ")
    opened.run("document.querySelector('[data-act=in]').click()")
    halved = shown_range(opened)
    assert halved != whole
    opened.run(f"{view}.focus()")
    opened.press("ArrowRight")
    assert shown_range(opened) not in (whole, halved)
    opened.press("0")
    assert shown_range(opened) == whole
    place = middle(opened, view)
    opened.mouse("mouseWheel", *place, deltaX=0, deltaY=-240)
    zoomed = shown_range(opened)
    assert zoomed != whole
    opened.mouse("mousePressed", *place, button="left", buttons=1)
    opened.mouse("mouseMoved", place[0] - 150, place[1], button="left", buttons=1)
    opened.mouse("mouseReleased", place[0] - 150, place[1], button="left")
    assert shown_range(opened) != zoomed
    opened.press("n")
    detail = opened.run("document.getElementById('timeline-detail').textContent")
    # the first collective of the step: the model's 16 floats of buffers
    assert "broadcast; 64 B" in detail
    assert opened.run("document.querySelectorAll('#timeline-view .k-exposed').length") > 0
    assert opened.errors == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window_and_text_has_contrast(
    opened: Browser, page: Path, width: int, dark: bool
) -> None:
    opened.show(width, dark=dark)
    opened.open(page)
    assert opened.run("document.documentElement.scrollWidth") == width
    too_wide = (
        "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, details, svg, #timeline-view')"
        f" && e.getBoundingClientRect().right > {width} + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert opened.run(too_wide) == []
    if width == 390:
        opened.run(UNFOLD)
        cut = (
            "[...document.querySelectorAll('figure .scroll, .table .scroll:has(.wide)')].filter(e => e.offsetParent"
            " && (e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1)).map(e => e.parentElement.id)"
        )
        assert opened.run(cut) == []
    parts = "document.querySelector('#table-step .scroll')"
    assert opened.run(f"{parts}.scrollWidth <= {parts}.clientWidth"), (
        "the parts of a step are in view"
    )
    for selector in (
        "body",
        ".faint",
        ".next",
        ".warning",
        "a",
        "td",
        "thead button",
        "#timeline-detail",
        ".lane",
    ):
        ratio = opened.run(f"({CONTRAST})(document.querySelector({json.dumps(selector)}))")
        assert ratio >= 4.5, (selector, ratio)  # WCAG 2.2, 1.4.3, AA
    assert opened.errors == []


# WCAG 2.2's relative luminance and contrast ratio, of an element's text on the nearest ground that
# is not transparent.
CONTRAST = """element => {
  const parse = text => text.match(/[0-9.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const style = getComputedStyle(element);
  const ink = element instanceof SVGElement ? style.fill : style.color;
  let ground = element;
  while (ground && /rgba\\(0, 0, 0, 0\\)/.test(getComputedStyle(ground).backgroundColor)) ground = ground.parentElement;
  const paper = ground ? getComputedStyle(ground).backgroundColor : 'rgb(255, 255, 255)';
  const [one, other] = [light(parse(ink)), light(parse(paper))];
  return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
}"""
