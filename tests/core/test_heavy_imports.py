"""Heavy imports while the garbage collector rests."""

import gc
import signal
import subprocess
import sys
from pathlib import Path

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
        "import gc\nfrom homo_dp.core.heavy_imports import quick_imports\nwith quick_imports():\n "
        "   import numpy\nprint(gc.get_freeze_count() > 1000, gc.isenabled())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
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


def modules_after(code: str, folder: Path) -> set[str]:
    """The modules of a process that ran this."""
    script = f"import sys\n{code}\nprint('\\n', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=folder
    )
    return set(done.stdout.splitlines()[-1].split())


def test_training_the_default_recipe_imports_opacus_but_nothing_that_it_does_not_need(
    tmp_path: Path,
) -> None:
    files = {
        "predictFileName": "p.csv",
        "indicatorFileName": "i.json",
        "modelFileName": "m.safetensors",
    }
    outputs = ",".join(f"{name}={tmp_path / file}" for name, file in files.items())
    settings = f"train.rounds=1,tracking.enabled=false,privacy.ledger={tmp_path}/l.sqlite"
    code = f"""
from homo_dp.train import main
assert main(["--quiet", "--params", "{settings},{outputs}"]) == 0
"""
    found = modules_after(code, tmp_path)
    assert "opacus" in found
    assert not found & {"sklearn", "dp_accounting.pld", "mlflow", "torch._dynamo", "matplotlib"}


@pytest.mark.parametrize(
    "code",
    [
        "from homo_dp.train import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass",
        "from homo_dp.train import main\nassert main(['--quiet', '--dry-run']) == 0",
        "import homo_dp.commands.aggregator, homo_dp.infer, homo_dp.commands.stats, homo_dp.runs.aggregator_process",
    ],
)
def test_what_trains_nothing_imports_no_opacus(code: str, tmp_path: Path) -> None:
    assert "opacus" not in modules_after(code, tmp_path)


def test_the_engine_for_loops_of_ones_own_is_imported_quickly_too() -> None:
    """That is, without the garbage collector, which is frozen after it."""
    code = (
        "import gc, torch\nimport homo_dp.opacus\nprint(gc.get_freeze_count() > 0, gc.isenabled())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


WITHOUT_COMPILER = """
import sys
import torch
from homo_dp.core.heavy_imports import keep_compiler_out
from homo_dp.privacy.engine.sgd import plain_sgd_step

keep_compiler_out()
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.5)
weight.grad = torch.ones(2)
assert plain_sgd_step(optimizer, [weight], [weight.grad])
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
print(weight.tolist(), weight.grad, "torch._dynamo" in sys.modules)
"""


def test_a_plain_optimiser_works_without_loading_the_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILER], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[0.5, 0.5] None False"
