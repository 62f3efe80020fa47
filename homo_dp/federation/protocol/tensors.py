"""Tensors as a safetensors body, without copies: views out when writing, views in when reading.

The `safetensors` package reads and writes the same bytes, but only through whole copies in memory;
a 100 MB model would exist four times over. The layout is small enough to check strictly here, and
tests hold it to the package.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from homo_dp.core.errors import MessageError
from homo_dp.core.strict_json import strict_json

TENSOR_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")
DTYPES: Final[Mapping[str, torch.dtype]] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
}
Weights = dict[str, Tensor]
"""Tensors of a model by name."""
_NAME_OF: Final = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNMENT: Final = 8
MAX_DIMENSIONS: Final = 8
MAX_HEADER_BYTES: Final = 1 << 20
_MAX_EXTENT: Final = (
    1 << 40
)  # of a tensor's strides; one without numbers may name any dimensions, which overflow in torch


def write_body(tensors: Mapping[str, Tensor]) -> list[memoryview]:
    """The safetensors file of `tensors` as consecutive pieces; large ones are views of the
    tensors' own memory.
    """
    header: dict[str, dict[str, object]] = {}
    pieces: list[memoryview] = []
    offset = 0
    # Widest type first keeps every tensor aligned, as the safetensors package does.
    for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):
        tensor = tensors[name]
        if not TENSOR_NAME.fullmatch(name):
            raise MessageError(
                f"tensor name={name[:80]!r} is not allowed: use letters, digits and _ . : / -"
            )
        if tensor.dtype not in _NAME_OF or tensor.dim() > MAX_DIMENSIONS:
            raise MessageError(
                f"tensor {name}: dtype={tensor.dtype}, dimensions={tensor.dim()} cannot travel: "
                f"use one of {', '.join(DTYPES)} and at most {MAX_DIMENSIONS} dimensions"
            )
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        size = flat.numel() * flat.element_size()
        header[name] = {
            "dtype": _NAME_OF[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
        if size:
            pieces.append(memoryview(flat.view(torch.uint8).numpy().data))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise MessageError(
            f"tensor names take {len(text)} bytes, allowed {MAX_HEADER_BYTES}: send fewer tensors"
        )
    return [memoryview(len(text).to_bytes(8, "little") + text), *pieces]


def read_body(body: memoryview, max_tensors: int) -> dict[str, Tensor]:
    """Tensors of a safetensors body; they share its memory if it is writable, else they are
    copies.
    """
    if len(body) < 8:
        raise MessageError("body is cut short: ask the sender to send it again")
    length = int.from_bytes(body[:8], "little")
    if length > MAX_HEADER_BYTES or length > len(body) - 8:
        raise MessageError(
            f"body header length={length} is outside of the message: the message is damaged"
        )
    header = parse_json(body[8 : 8 + length])
    if len(header) > max_tensors:
        raise MessageError(
            f"tensors={len(header)}, allowed {max_tensors}: raise the limit or send fewer"
        )
    data = body[8 + length :]
    spans = sorted(
        (_span(name, entry) for name, entry in header.items()), key=lambda span: (span[3], span[4])
    )
    end = 0
    for name, _, _, begin, stop in spans:
        if begin != end:
            raise MessageError(
                f"tensor {name}: data_offsets leave a gap or overlap: the message is damaged"
            )
        end = stop
    if end != len(data):
        raise MessageError(
            f"tensors take {end} bytes of a body of {len(data)}: the message is damaged"
        )
    return {
        name: _tensor(data[begin:stop], dtype, shape) for name, dtype, shape, begin, stop in spans
    }


def parse_json(data: memoryview) -> dict[str, Any]:
    """A JSON object without repeated keys, NaN or infinities, and text that is valid UTF-8; else
    MessageError.
    """
    try:
        parsed = strict_json(bytes(data).decode("utf-8"))
        # lone surrogates and 1e999 fail here
        json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise MessageError(
            f"header is not plain JSON ({str(error)[:80]}): the message is damaged"
        ) from None
    if not isinstance(parsed, dict):
        raise MessageError("header is not a JSON object: the message is damaged")
    return parsed


def _span(name: str, entry: object) -> tuple[str, torch.dtype, tuple[int, ...], int, int]:
    if not TENSOR_NAME.fullmatch(name):
        raise MessageError(
            f"tensor name={name[:80]!r} is not allowed: use letters, digits and _ . : / -"
        )
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise MessageError(f"tensor {name}: wants exactly dtype, shape and data_offsets")
    label, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(label, str) or label not in DTYPES:
        raise MessageError(f"tensor {name}: dtype={str(label)[:20]!r}, allowed {', '.join(DTYPES)}")
    if not _counts(shape) or len(shape) > MAX_DIMENSIONS:
        raise MessageError(f"tensor {name}: shape wants at most {MAX_DIMENSIONS} counts")
    if not _counts(offsets) or len(offsets) != 2:
        raise MessageError(f"tensor {name}: data_offsets wants two counts")
    if math.prod(max(1, count) for count in shape) > _MAX_EXTENT:
        raise MessageError(
            f"tensor {name}: shape={shape} is larger than any tensor that can travel"
        )
    begin, stop = offsets
    if stop - begin != math.prod(shape) * DTYPES[label].itemsize:
        raise MessageError(
            f"tensor {name}: shape={shape} and dtype={label} do not fill {stop - begin} bytes"
        )
    return name, DTYPES[label], tuple(shape), begin, stop


def _counts(values: object) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 1 << 48 for value in values
    )


def _tensor(data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not len(data):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data) if data.readonly else data, dtype=dtype).reshape(shape)
