"""The tables of `known_answers.toml`, by name."""

from tests.known import known_answers

ANSWERS = known_answers(__file__)
