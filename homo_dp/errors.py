"""The errors of `homo_dp.core.errors` under the name by which the rest of the package imports them."""

from homo_dp.core.errors import ConfigError, DataError, InputError, MessageError, ModelFileError, TransportError

__all__ = ["ConfigError", "DataError", "InputError", "MessageError", "ModelFileError", "TransportError"]
