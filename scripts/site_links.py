"""A hook of MkDocs: links from a page to files outside `docs/` become those files' paths.

The links work on a git host, but the site holds only the pages.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_PROGRAM = re.compile(r"(^ *```.*?^ *```)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    folder = posixpath.dirname(page.file.src_uri)

    def rewritten(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = posixpath.normpath(posixpath.join("docs", folder, target))
        if "://" in target or path.startswith("docs/"):
            return link[0]
        return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"

    parts = _PROGRAM.split(markdown)
    # Every second part is a program.
    parts[::2] = [_LINK.sub(rewritten, part) for part in parts[::2]]
    return "".join(parts)
