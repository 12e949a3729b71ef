"""`known_answers.toml` by table, for the tests that ask for them."""

from tests.known import known

KNOWN = known(__file__)
