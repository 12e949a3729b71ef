"""cupti-python."""
