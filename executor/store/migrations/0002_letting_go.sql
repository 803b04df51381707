-- Jobs that nobody runs for now: held back by their key's limit, or waiting for a human.

alter table dw_jobs
    add column held boolean not null default false,  -- an item that its key's limit keeps out of the queue for now
    add column wake_at timestamptz;                  -- of a job that waits for a human and that nobody runs: when it
                                                     -- goes on
comment on column dw_jobs.crashes is 'of processes that ran it alone and wrote nothing, in a row';

drop index dw_jobs_open;
create index dw_jobs_open on dw_jobs (tenant, held, status) where ended_at is null;
create index dw_jobs_held on dw_jobs (tenant, created_at, line) where held and ended_at is null;
create index dw_jobs_spent on dw_jobs (tenant, ended_at) include (cost_usd) where cost_usd is not null;
create index dw_jobs_waiting on dw_jobs (wake_at) where wake_at is not null;
