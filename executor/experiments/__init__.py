"""Experiments: the same tasks by several arms, judged alike, with what it cost and how sure the difference is.

`experiment_file` reads one, `recorded` has arms of answers on file, `run` runs the others as jobs, `grading` judges,
`report` tells, `fit` learns a policy of it. What one leaves for the next stands in a run's `folder`.
"""
