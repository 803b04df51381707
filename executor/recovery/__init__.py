"""How a job goes on whose worker has died or let it go: from where its log says that it stood.

`job_past` folds the log, with `past_talk`, `past_time` and `step_past` for their parts of it; `retold` keeps what was
told from being told again; `uncertain` knows the calls that may have taken effect; `interrupted` is the account of a
job that can't go on.
"""

from .job_past import JobPast

__all__ = ["JobPast"]
