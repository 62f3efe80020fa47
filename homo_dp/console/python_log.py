"""Warnings of homo_dp in a Python program that has configured no logging of its own."""

from __future__ import annotations

import logging
from typing import Final

# what opacus gives the root logger when it is imported, if nobody has given it anything before
_OF_OPACUS: Final = ("%(asctime)s:%(levelname)s:%(message)s", "%m/%d/%Y %H:%M:%S")


class ScreenHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Shows a warning as the commands do, unless the program shows it in its own way.

    A program's handlers are left as they are. The one of opacus is taken away: no program asked for
    it, and it would keep a later ``logging.basicConfig`` of the program from doing anything.
    """

    def emit(self, record: logging.LogRecord) -> None:
        root = logging.getLogger()
        for handler in list(root.handlers):
            form = handler.formatter
            if form is not None and (form._fmt, form.datefmt) == _OF_OPACUS:
                root.removeHandler(handler)
        if not root.handlers:
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        from homo_dp.console.screen import Plain

        return Plain().format(record)


def show_warnings() -> None:
    """Show the warnings of homo_dp from now on, once however often it is called."""
    logger = logging.getLogger("homo_dp")
    if not any(isinstance(handler, ScreenHandler) for handler in logger.handlers):
        logger.addHandler(ScreenHandler())
