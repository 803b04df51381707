-- Experiments: a batch (mode experiment) whose items are cells, one task by one arm, once; a few at a time are begun,
-- within one budget. Cells of recorded arms are no jobs.

create table dw_experiments (
    id text primary key references dw_batches (id),
    name text not null,
    asked json not null,                       -- the experiment as it was asked for, its keys in their order
    shown jsonb not null,                      -- what lists show of it: arms, tasks, repeats, grader, budget
    cells integer not null,                    -- all of them, those of recorded arms among them
    concurrency integer not null,              -- cells at work at once
    budget_usd numeric,                        -- what all of them may cost together
    budget_tokens bigint,
    spent_at timestamptz,                      -- since then nothing begins: what is left of the budget is not enough
    report json,                               -- as it was made once all cells had ended
    report_problem jsonb                       -- why there can be none: code, title, detail
);

create table dw_outcomes (                     -- what came of a cell, made of its job when a report is first asked for
    job text primary key references dw_jobs (id) on delete cascade,
    outcome jsonb not null
);

alter table dw_jobs
    add column cell jsonb,                     -- of an experiment: its arm, task, repeat
    add column reserved_usd numeric,           -- what a cell may cost at most, taken out of the experiment's budget
    add column reserved_tokens bigint;

drop index dw_jobs_held;
create index dw_jobs_held on dw_jobs (tenant, created_at, line) where held and ended_at is null and cell is null;
create index dw_jobs_cells on dw_jobs (batch, line) where held and ended_at is null and cell is not null;
