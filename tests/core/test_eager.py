"""Optimisers that work without torch's compiler."""

import subprocess
import sys

SCRIPT = """
import sys
import torch
from homo_dp.core.eager import keep_compiler_out
from homo_dp.privacy.training.sgd import step_optimizer

keep_compiler_out()
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.5)
weight.grad = torch.ones(2)
step_optimizer(optimizer, [weight], [weight.grad])
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
print(weight.tolist(), weight.grad, "torch._dynamo" in sys.modules)
"""


def test_a_plain_optimiser_works_without_loading_the_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[0.5, 0.5] None False"
