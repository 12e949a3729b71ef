"""A fitted bundle and a GPU that it has never seen: which problems to measure there, and what they correct."""
