"""The pictures of examples/run_cpu's page in docs/images, taken in a headless Chromium.

python -m docs._tools.pictures
"""

import base64
import io
import json
import shutil
import tempfile
from pathlib import Path

from PIL import Image

from dpscope.analysis import analyze, write_report
from tests.helpers.browser import Browser, browser

IMAGES = Path("docs/images")
_WIDTH = 1280
_MARGIN = 6
# Between these two elements of the page, as CSS selectors.
_PICTURES = {
    "report": ("header", "#table-step"),
    "step_split": ("#figure-communication", "#figure-step_split"),
    "timeline": ("#timeline .title", "#timeline .legend"),
}
_CLIP = """(() => {
  const boxes = %s.map(one => document.querySelector(one).getBoundingClientRect());
  const top = Math.min(...boxes.map(box => box.top)) - %d;
  const bottom = Math.max(...boxes.map(box => box.bottom)) + %d;
  return {x: 0, y: Math.max(top, 0), width: innerWidth, height: bottom - Math.max(top, 0), scale: 1};
})()"""


def main() -> None:
    """Write the report of a copy of the run, and take its pictures."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run_cpu"
        shutil.copytree("examples/run_cpu", run)
        write_report(analyze(run).report)
        with browser(Path(folder) / "profile") as page:
            page.show(_WIDTH)
            page.open(run / "report/report.html")
            for name, selectors in _PICTURES.items():
                _take(page, *selectors, IMAGES / f"{name}.png")


def _take(page: Browser, first: str, last: str, path: Path) -> None:
    clip = page.run(_CLIP % (json.dumps([first, last]), _MARGIN, _MARGIN))
    taken = page.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    picture = Image.open(io.BytesIO(base64.b64decode(taken["data"])))
    picture.convert("RGB").quantize(256).save(path, optimize=True)


if __name__ == "__main__":
    main()
