"""A GPU's measuring campaign: one command that measures, counts and writes a dataset fit to be published."""
