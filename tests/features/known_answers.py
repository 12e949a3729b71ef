"""`known_answers.toml` by table, for the tests that ask for them."""

from tests.known import known_answers

ANSWERS = known_answers(__file__)
