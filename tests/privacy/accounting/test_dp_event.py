"""dp-accounting with its own code put off: nobody who uses it can tell, but for the time."""

import subprocess
import sys

CODE = """
import sys
from homo_dp.privacy.accounting.accountants import calibrate, epsilon
from homo_dp.privacy.accounting.dp_event import GaussianDpEvent, SelfComposedDpEvent
calibrate(lambda z: SelfComposedDpEvent(GaussianDpEvent(z), 3), 1.0, 1e-5)
late = {{"dp_accounting.pld", "dp_accounting.rdp", "scipy.signal", "scipy.optimize"}} & set(sys.modules)
assert not late, late
{use}
assert theirs is GaussianDpEvent
assert dp_accounting.pld.PLDAccountant().compose(theirs(5.0)).get_epsilon(1e-5) > 0
assert not hasattr(dp_accounting, "no_such_name")
"""
USES = (
    "import dp_accounting; theirs = dp_accounting.GaussianDpEvent",
    "import dp_accounting; theirs = dp_accounting.dp_event.GaussianDpEvent",
    "import dp_accounting; from dp_accounting import pld, GaussianDpEvent as theirs",
    (
        "import dp_accounting.rdp as rdp, dp_accounting; theirs = "
        "rdp.rdp_privacy_accountant.dp_event.GaussianDpEvent"
    ),
)
THREADS = """
import threading
import dp_accounting
found = []
threads = [threading.Thread(target=lambda: found.append(dp_accounting.mechanism_calibration)) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(found) == 4, found
theirs = dp_accounting.GaussianDpEvent
"""


def test_the_package_is_whole_for_whoever_asks_it() -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", CODE.format(use=use)], stderr=subprocess.PIPE, text=True
        )
        for use in (*USES, THREADS)
    ]
    for process in running:
        _, said = process.communicate()
        assert process.returncode == 0, said
