"""Settings that all tests share."""

from hypothesis import settings

# The same examples every time: a check that fails must fail again when somebody looks at it.
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")
