"""One HTML page that needs nothing else: its style and pictures are inside, and every value is escaped."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #1a1a1a; background: #fff;
  max-width: 62rem; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; border-bottom: 2px solid #ddd; }
table { border-collapse: collapse; margin: .6rem 0; font-size: .92rem; }
th, td { text-align: left; padding: .28rem .8rem .28rem 0; border-bottom: 1px solid #e3e3e3; vertical-align: top; }
th { font-weight: 600; } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; } .meta { color: #555; margin-bottom: 1rem; }
.badge { display: inline-block; padding: .1rem .6rem; border-radius: .3rem; color: #fff; font-weight: 600; }
.good { background: #00694b; } .bad { background: #b02a00; } .local { background: #6b4a00; font-size: .8rem; }
.box { border-left: .35rem solid #0072b2; background: #f2f7fb; padding: .7rem 1rem; margin: .8rem 0; }
.box.warn { border-color: #b02a00; background: #fdf3ef; } .box.note { border-color: #6b4a00; background: #fbf6ea; }
img { max-width: 100%; margin: .6rem 0; border: 1px solid #e3e3e3; }
code, .hash { font: .85rem monospace; } .hash { word-break: break-all; }
summary { cursor: pointer; font-weight: 600; margin: .5rem 0; }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; }
@media print { details { display: block; } body { max-width: none; margin: 0; } h2 { break-after: avoid; } }
"""


class Html(str):
    """Text that is HTML already; everything else is escaped where it is put in."""

    __slots__ = ()


def html(value: object) -> Html:
    """A value as HTML: ours as it is, all else escaped.

    >>> html("<b>"), html(Html("<b>"))
    ('&lt;b&gt;', '<b>')
    """
    return value if isinstance(value, Html) else Html(escape(show(value)))


def show(value: object) -> str:
    """A value as a person reads it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e9 else f"{value:.4g}"
    return str(value)


def tag(name: str, *content: object, **attributes: str) -> Html:
    """An element with escaped content and attributes.

    >>> tag("p", "a < b", class_="box")
    '<p class="box">a &lt; b</p>'
    """
    written = "".join(f' {key.rstrip("_")}="{escape(value, quote=True)}"' for key, value in attributes.items())
    return Html(f"<{name}{written}>{''.join(html(part) for part in content)}</{name}>")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """A table; columns of numbers stand to the right."""
    cells = [list(row) for row in rows]
    right = [bool(cells) and all(_is_number(row[index]) for row in cells) for index in range(len(header))]
    head = tag(
        "tr", *(tag("th", name, class_="number" if side else "") for name, side in zip(header, right, strict=True))
    )
    body = [
        tag("tr", *(tag("td", cell, class_="number" if side else "") for cell, side in zip(row, right, strict=True)))
        for row in cells
    ]
    return tag("div", tag("table", head, *body), class_="scroll")


def facts(pairs: Iterable[tuple[str, object]]) -> Html:
    """A table of names and values."""
    return tag("table", *(tag("tr", tag("th", name), tag("td", value)) for name, value in pairs))


def listed(items: Iterable[object]) -> Html:
    """A list of points."""
    return tag("ul", *(tag("li", item) for item in items))


def folded(title: str, *content: object) -> Html:
    """Details that open on a click."""
    return tag("details", tag("summary", title), *content)


def picture(data: bytes, text: str) -> Html:
    """A PNG inside the page, with its description."""
    source = base64.b64encode(data).decode()
    return Html(f'<img alt="{escape(text, quote=True)}" src="data:image/png;base64,{source}">')


def page(title: str, *content: object) -> str:
    """The whole document; it may load nothing and run nothing."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style>"
    )
    body = "\n".join(html(part) for part in content)
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n'


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
