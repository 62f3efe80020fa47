"""Heavy imports while the garbage collector rests."""

import gc
import subprocess
import sys

import pytest

from homo_dp.quick import quick_imports


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
        "import gc\nfrom homo_dp.quick import quick_imports\nwith quick_imports():\n    import numpy\n"
        "print(gc.get_freeze_count() > 1000, gc.isenabled())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
