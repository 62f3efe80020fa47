"""Links out of docs/ (../homo_dp/..., ../README.md) are for readers of the repository: check them,
then leave the text.

mkdocs knows pages of docs/ only and would call every such link broken.
"""

import logging
import re
from pathlib import Path
from typing import Any

log = logging.getLogger("mkdocs.plugins.links")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Replace links to files of the repository by their text; a file that is not there is a
    warning, so an error.
    """
    docs = Path(config["docs_dir"]).resolve()
    here = Path(page.file.abs_src_path).resolve().parent

    def replaced(found: re.Match[str]) -> str:
        target = (here / found[2]).resolve()
        if not target.exists():
            log.warning("%s: link to %s, which is not there", page.file.src_path, found[2])
        return (
            found[0] if target.is_relative_to(docs) else f"{found[1]} (`{found[2].lstrip('./')}`)"
        )

    return _LINK.sub(replaced, markdown)
