"""Tensors on the wire are safetensors files, and nothing else passes."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load, save

from homo_dp.core.errors import MessageError
from homo_dp.federation.protocol.tensors import read_body, write_body

TENSORS = {
    "w": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "d": torch.tensor(2.5, dtype=torch.float64),
    "i": torch.tensor([1, -2], dtype=torch.int64),
    "none": torch.zeros(0, 3),
}


def _body(tensors: dict[str, torch.Tensor]) -> bytes:
    return b"".join(bytes(piece) for piece in write_body(tensors))


def test_the_package_reads_what_is_written_and_the_other_way_round() -> None:
    theirs = load(_body(TENSORS))
    ours = read_body(memoryview(bytearray(save(TENSORS))), 10)
    for name, tensor in TENSORS.items():
        assert torch.equal(theirs[name], tensor)
        assert torch.equal(ours[name], tensor)
        assert ours[name].dtype == tensor.dtype


def test_more_tensors_than_allowed() -> None:
    with pytest.raises(MessageError, match="tensors=4, allowed 3"):
        read_body(memoryview(bytearray(_body(TENSORS))), 3)


@pytest.mark.parametrize("cut", [0, 4, 9, -1])
def test_a_cut_body(cut: int) -> None:
    with pytest.raises(MessageError):
        read_body(memoryview(bytearray(_body(TENSORS)[:cut])), 10)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 4]},
        {"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
    ],
)
def test_headers_that_do_not_fit_their_bytes(entry: object) -> None:
    header = json.dumps({"w": entry}).encode()
    with pytest.raises(MessageError):
        read_body(memoryview(bytearray(len(header).to_bytes(8, "little") + header + bytes(4))), 10)


def test_names_that_others_could_not_hold() -> None:
    with pytest.raises(MessageError, match="is not allowed"):
        _body({"a\n": torch.zeros(1)})
