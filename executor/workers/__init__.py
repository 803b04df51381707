"""The processes that run jobs out of the database, and what they are made of.

`supervisor` keeps child processes running, each of which is a `worker`: its `engine` takes jobs from the queue
(`engine_queue` is PgQueuer), `stored_job` runs one with what stands in the `workshop`, `inbox` wakes it when something
was said to it, `live` sends pieces of its answer ahead, `handover` lets it go, `suspects` runs those that may have
killed a worker each in a process of its own. `local_job` is one that the command runs by itself.
"""
