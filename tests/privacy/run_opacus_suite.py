"""Run Opacus' own engine tests against our PrivacyEngine, from a checkout of Opacus (nothing of it
is copied here).

    python -m tests.privacy.run_opacus_suite CHECKOUT [-k PART] [--verbose]

CHECKOUT is a folder that holds ``opacus/tests``; the Opacus that the tests use is the installed
one, so take a checkout of the same version. What passes and what differs on purpose is in
docs/opacus.md.
"""

import argparse
import collections
import importlib
import logging
import sys
import types
import unittest
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import opacus
import opacus.privacy_engine
import torch

from homo_dp.privacy.engine.engine import PrivacyEngine

MODULES = (
    "privacy_engine_test",
    "privacy_engine_validation_test",
    "batch_memory_manager_test",
    "gradient_accumulation_test",
    "randomness_test",
)


class OrdinaryByDefault(PrivacyEngine):
    """Our engine with Opacus' default, ``secure_mode=False``, which its tests count on."""

    def __init__(self, *, secure_mode: bool = False, **options: Any) -> None:
        super().__init__(secure_mode=secure_mode, **options)


class Outcomes(unittest.TestResult):
    """What became of every test, and the last line of what it raised; a test counts once,
    whatever its parts do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.why: dict[str, str] = {}
        self.skips = 0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.why.setdefault(test.id(), "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self.skips += 1
        self.why[test.id()] = f"skipped: {reason}"

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self._note(test, err)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self._note(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._note(test, err)

    def _note(self, test: unittest.TestCase, err: Any) -> None:
        error = _first(err[1])
        self.why[test.id()] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def load(checkout: Path, names: Sequence[str]) -> Iterator[unittest.TestCase]:
    """The tests of these modules, which find our engine where they look for Opacus'."""
    folder = checkout / "opacus" / "tests"
    if not folder.is_dir():
        raise SystemExit(f"{checkout} has no opacus/tests; give the folder of a checkout of Opacus")
    package = types.ModuleType("opacus.tests")
    package.__path__ = [str(folder)]
    sys.modules["opacus.tests"] = package
    opacus.PrivacyEngine = opacus.privacy_engine.PrivacyEngine = OrdinaryByDefault
    _stand_in_for_torchvision()
    for name in names:
        if (folder / f"{name}.py").exists():
            module = importlib.import_module(f"opacus.tests.{name}")
            yield from _flat(unittest.defaultTestLoader.loadTestsFromModule(module))


class _Images(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """What the tests take from torchvision's FakeData: pictures of noise with a class."""

    def __init__(self, size: int, image_size: tuple[int, ...], num_classes: int, **_: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        self._pictures = torch.randn(size, *image_size, generator=generator)
        self._classes = torch.randint(0, num_classes, (size,), generator=generator).tolist()

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index >= len(self):
            raise IndexError(index)
        return self._pictures[index], self._classes[index]


def _stand_in_for_torchvision() -> None:
    """Let the tests be imported where torchvision is not installed; those that want its models
    are skipped.
    """
    try:
        importlib.import_module("torchvision.datasets")
    except (ImportError, RuntimeError):  # RuntimeError: built for another torch

        def skip(*_: Any, **__: Any) -> None:
            raise unittest.SkipTest("torchvision is not installed")

        names: dict[str, dict[str, Any]] = {
            "torchvision": {},
            "torchvision.models": {"resnet18": skip, "densenet121": skip},
            "torchvision.transforms": dict.fromkeys(
                ("Compose", "ToTensor", "Normalize"), lambda *_: None
            ),
            "torchvision.datasets": {"FakeData": _Images},
        }
        for name, values in names.items():
            module = sys.modules[name] = types.ModuleType(name)
            vars(module).update(values)
            if "." in name:
                setattr(sys.modules["torchvision"], name.split(".")[1], module)


def _flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from _flat(each)
        else:
            yield each


def _first(error: BaseException) -> BaseException:
    """Of several that hypothesis found, one."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def main() -> int:
    """Run, and print counts and reasons."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("-k", default="", help="only tests whose name has this in it")
    parser.add_argument("--verbose", action="store_true", help="name every test that did not pass")
    parser.add_argument(
        "--examples", type=int, default=10, help="examples of each test that makes its own"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    hypothesis.settings.register_profile(
        "few", max_examples=options.examples, deadline=None, derandomize=True
    )
    hypothesis.settings.load_profile("few")
    logging.disable(logging.CRITICAL)
    outcomes = Outcomes()
    for test in load(options.checkout, MODULES):
        if options.k in test.id():
            test.run(outcomes)
    reasons: dict[str, list[str]] = collections.defaultdict(list)
    for name, why in outcomes.why.items():
        reasons[why].append(name.removeprefix("opacus.tests."))
    passed = len(reasons.pop("", []))
    print(f"{len(outcomes.why)} tests, {passed} passed, {outcomes.skips} skipped")
    for why, names in sorted(reasons.items(), key=lambda each: -len(each[1])):
        print(f"{len(names):4}  {why}")
        if options.verbose:
            print(*(f"        {name}" for name in sorted(names)), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
