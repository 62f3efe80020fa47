"""Errors a user can act on; each message is one line that says what to do next."""


class InputError(ValueError):
    """Bad input of any kind: the command exits with 2."""


class ConfigError(InputError):
    """A configuration key or value that cannot be used."""


class DataError(InputError):
    """A table, image file or column that cannot be used."""


class ModelFileError(InputError):
    """A model file that cannot be read or must not be trusted."""


class MessageError(ValueError):
    """A message that is malformed, altered, unexpected or from a stranger."""


class TransportError(ValueError):
    """A transport that cannot deliver: a full disk, a missing permission, a lost connection."""
