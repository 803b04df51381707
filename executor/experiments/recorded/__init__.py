"""Answers that are on file: read out of tables, and arms that cost no call."""
