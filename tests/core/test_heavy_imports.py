"""Heavy imports while the garbage collector rests."""

import gc
import signal
import subprocess
import sys

import pytest

from homo_dp.core.heavy_imports import quick_imports


def test_the_collector_rests_inside_and_is_as_before_afterwards() -> None:
    with quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with quick_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_import_that_fails_leaves_the_collector_on() -> None:
    with pytest.raises(ImportError), quick_imports():
        raise ImportError("no such module")
    assert gc.isenabled()


def test_only_many_modules_are_frozen() -> None:
    before = gc.get_freeze_count()
    with quick_imports():
        pass
    assert gc.get_freeze_count() == before
    script = (
        "import gc\nfrom homo_dp.core.heavy_imports import quick_imports\nwith quick_imports():\n    import numpy\n"
        "print(gc.get_freeze_count() > 1000, gc.isenabled())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_until_an_import_is_whole(number: signal.Signals) -> None:
    """Raised inside torch's own code it would end the process with an abort instead of a line."""
    before = signal.signal(number, signal.default_int_handler)
    imported = []

    def interrupted(*, fails: bool) -> None:
        with quick_imports():
            signal.raise_signal(number)
            imported.append("whole")
            if fails:
                raise ImportError("no such module")

    try:
        for fails in (False, True):
            with pytest.raises(KeyboardInterrupt):
                interrupted(fails=fails)
        assert imported == ["whole"] * 2
        assert signal.getsignal(number) is signal.default_int_handler
        signal.signal(number, signal.SIG_IGN)
        with quick_imports():
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
