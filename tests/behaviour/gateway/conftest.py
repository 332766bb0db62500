"""For all tests of the gateway."""

from tests.support.short_patience import _short_patience  # noqa: F401
