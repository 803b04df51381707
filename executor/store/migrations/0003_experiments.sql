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

create index dw_experiments_unreported on dw_experiments (id) where report is null and report_problem is null;

create table dw_outcomes (                     -- what came of a cell, made of its job when a report is first asked for
    job text primary key references dw_jobs (id) on delete cascade,
    outcome jsonb not null
);

alter table dw_jobs
    add column cell jsonb,                     -- of an experiment: its arm, task, repeat
    add column reserved_usd numeric,           -- what a cell may cost at most, taken out of the experiment's budget
    add column reserved_tokens bigint,
    add column used_tokens bigint,             -- of an ended cell, input and output
    add column partial boolean;                -- a part of its cost and of its tokens is not known

drop index dw_jobs_held;
create index dw_jobs_held on dw_jobs (tenant, created_at, line) where held and ended_at is null and cell is null;
create index dw_jobs_cells on dw_jobs (batch, line) where held and ended_at is null and cell is not null;
create index dw_jobs_cells_begun on dw_jobs (batch) where not held and ended_at is null and cell is not null;

-- Whoever ends a cell, in whatever statement: what its experiment's budget counts stands in columns, since summing it up
-- out of thousands of summaries takes seconds.
create function dw_cell_ends() returns trigger language plpgsql as $$
begin
    new.used_tokens = (new.summary -> 'usage' ->> 'input_tokens')::bigint
        + (new.summary -> 'usage' ->> 'output_tokens')::bigint;
    new.partial = coalesce((new.summary -> 'usage' ->> 'partial')::boolean, true) or new.cost_usd is null;
    return new;
end
$$;
create trigger dw_cell_ended before update of ended_at on dw_jobs for each row
    when (new.cell is not null and old.ended_at is null and new.ended_at is not null) execute function dw_cell_ends();
