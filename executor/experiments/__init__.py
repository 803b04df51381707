"""Experiments: the same tasks by several arms, judged alike, with what it cost and how sure the difference is."""
