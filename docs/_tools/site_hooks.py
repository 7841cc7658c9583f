"""What `make site` changes in a page: links to files of the repository outside docs/ become their text and name."""

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    return OUTSIDE.sub(lambda found: found[1] if found[1] in found[2] else f"{found[1]} (`{found[2]}`)", markdown)
