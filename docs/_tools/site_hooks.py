"""What `make site` changes: README.md becomes the home page, and links to files outside docs/
become their text and name.
"""

import re
from pathlib import Path
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./|(?=examples/|tests/|CONTRIBUTING))([^)]+)\)")


def on_files(files: Any, *, config: Any) -> Any:
    from mkdocs.structure.files import File

    text = Path(config.config_file_path).with_name("README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return _OUTSIDE.sub(
        lambda link: link[1] if link[1] in link[2] else f"{link[1]} (`{link[2]}`)", markdown
    )
