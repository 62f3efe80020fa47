"""The screen: what is shown, where, and when."""

import io
import json
import re
import subprocess
import sys

import pytest

from homo_dp.console.screen import Screen, figures_text


def test_progress_of_unknown_length_reports_at_doublings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Screen().progress(None, "rows") as progress:
        for _ in range(100):
            progress.advance(10)
    counts = [int(line.split()[1]) for line in capsys.readouterr().err.splitlines()]
    assert counts == [10, 20, 40, 80, 160, 320, 640]


@pytest.mark.parametrize("total", [1, 7, 10, 11, 1000])
def test_progress_of_known_length_is_short_and_ends_at_the_end(
    capsys: pytest.CaptureFixture[str], total: int
) -> None:
    with Screen().progress(total) as progress:
        for _ in range(total):
            progress.advance()
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == f"round {total}/{total}"
    assert len(lines) <= 12


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [200, 80, 60, 40, 20])
def test_no_cell_is_cut_short_on_a_narrow_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers give way first, then the table is turned; one that does not fit even so is plain
    lines, which wrap.
    """
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    header = [
        "party",
        "noise multiplier",
        "epsilon (PLD)",
        "remaining budget",
        "noise to signal per step",
    ]
    Screen().table("plan", header, [["party_1", 3.358, 3.9921, 1e-5, 0.3739]])
    text = stream.getvalue()
    for cell in ("party_1", "3.358", "3.992", "1e-05", "0.3739", "multiplier", "remaining"):
        assert cell in text
    assert "…" not in text
    assert ("┃" in text) == (columns >= 40)
    assert ("│ noise multiplier         │   3.358 │" in text) == (columns == 40)


def test_figures_leave_out_what_is_not_known() -> None:
    assert figures_text({"loss": 0.25, "epsilon": None, "test_acc": 1}) == "loss 0.25  test acc 1"


def test_summary_is_valid_json_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Screen(as_json=True).summary({"a": [1, None], "é": "中"})
    assert json.loads(capsys.readouterr().out) == {"a": [1, None], "é": "中"}
    with pytest.raises(ValueError, match="JSON compliant"):
        Screen(as_json=True).summary({"a": float("nan")})


def test_a_table_without_rows(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().table("", ["a", "b"], [])
    assert capsys.readouterr().out == "a  b\n"


def test_warnings_go_to_stderr_unless_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().warn("two\nlines")
    Screen(quiet=True).warn("nothing")
    Screen(quiet=True).line("nothing")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "warning: two lines\n")


def test_a_library_that_warns_or_logs_does_it_in_one_plain_line() -> None:
    code = """if True:
        import logging
        from homo_dp.console.screen import hush
        hush(quiet=False)
        logging.basicConfig(format="%(asctime)s %(message)s")  # what a library does when it is imported
        logging.getLogger("a").warning("two\\nlines of %s", "text")
    """
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr == "warning: two lines of text\n"


def test_a_bar_at_80_columns_keeps_its_width_its_times_and_its_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal)
    with Screen().progress(100) as progress:
        for _ in range(100):
            progress.advance(loss=0.12741, accuracy=0.97371, epsilon=3.9961)
    printed = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    bar, figures = (line.strip() for line in re.split(r"[\r\n]+", printed.rstrip())[-2:])
    assert bar.count("\u2501") == 30
    assert re.fullmatch(r"round \S+ 100/100 0:00:\d\d left 0:00:00", bar)
    assert figures == "loss 0.1274  accuracy 0.9737  epsilon 3.996"
    assert "\u2026" not in bar + figures


def test_long_work_says_how_long_the_rest_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter(range(0, 1000, 10))
    monkeypatch.setattr("homo_dp.console.screen.time.monotonic", lambda: float(next(moments)))
    with Screen().progress(20) as progress:
        for _ in range(20):
            progress.advance(loss=1)
    lines = capsys.readouterr().err.splitlines()
    assert "left" not in lines[0]  # nothing to go by yet
    assert lines[1] == "round 3/20  loss 1  1 min 25 s left"
    assert "left" not in lines[-1]
