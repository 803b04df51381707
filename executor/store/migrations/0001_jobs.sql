-- Jobs, their history, and what is said to them. A job's state is what folding its events gives; the columns beside
-- it are for lists, claims and limits.

create table dw_keys (
    id text primary key,
    name text not null,
    hash bytea not null unique,                -- SHA-256 of the key; the key itself is never stored
    created_at timestamptz not null default now(),
    revoked_at timestamptz,
    limits jsonb not null default '{}'         -- requests_per_minute, running_jobs, usd_per_day
);

create table dw_sessions (
    hash bytea primary key,                    -- SHA-256 of what stands in the browser's cookie
    key text not null references dw_keys (id) on delete cascade,
    expires_at timestamptz not null
);

create table dw_batches (
    id text primary key,
    tenant text not null,
    mode text not null,                        -- plan | run
    total integer not null default 0,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    cancelled_at timestamptz,
    idempotency_key text,
    request_hash bytea,
    metadata jsonb not null default '{}',
    ended_at timestamptz,                      -- set with counts once none of its items is open: from then on they stand
    counts jsonb,
    unique (tenant, idempotency_key)
);
create index dw_batches_by_time on dw_batches (tenant, created_at desc, id desc);
create index dw_batches_open on dw_batches (expires_at) where ended_at is null;

create table dw_jobs (
    id text primary key,
    tenant text not null,                      -- the id of the API key; '' where none is configured
    kind text not null default 'run',          -- run | plan
    status text not null default 'queued',
    goal text not null,
    mode text not null,
    request jsonb not null,                    -- what was asked, as it is needed to run it
    summary jsonb,                             -- the ended job in its public shape
    metadata jsonb not null default '{}',
    parent text,
    batch text references dw_batches (id),
    custom_id text,
    line integer,                              -- of the batch's input, from 1
    idempotency_key text,
    request_hash bytea,
    created_at timestamptz not null default now(),
    started_at timestamptz,
    ended_at timestamptz,
    seq bigint not null default 0,             -- of the last event
    owner uuid,                                -- the queue manager that may write
    cancel boolean not null default false,
    crashes integer not null default 0,
    claimed_seq bigint not null default 0,     -- seq at the last claim
    cost_usd numeric,
    unique (tenant, idempotency_key),
    unique (batch, line)
);
create index dw_jobs_by_time on dw_jobs (tenant, created_at desc, id desc) where batch is null;
create index dw_jobs_of_batch on dw_jobs (batch, status) include (ended_at) where batch is not null;
create index dw_jobs_open on dw_jobs (tenant, status) where ended_at is null;
create index dw_jobs_ended on dw_jobs (ended_at) include (status) where ended_at is not null;
create index dw_jobs_metadata on dw_jobs using gin (metadata jsonb_path_ops);

alter table dw_jobs set (fillfactor = 50);     -- each statement of its owner changes the row: in place, if there is room

create table dw_events (                       -- no foreign key: appending checks the job itself, once a statement
    job text not null,
    seq bigint not null,
    ts double precision not null,              -- seconds since the epoch, UTC
    channel text not null,
    step_id text,
    public boolean not null,
    payload jsonb not null,
    primary key (job, seq)
);

create function dw_forget() returns trigger language plpgsql as $$
begin
    delete from dw_events where job in (select id from gone);
    return null;
end $$;
create trigger dw_forget after delete on dw_jobs
    referencing old table as gone for each statement execute function dw_forget();

create table dw_inbox (
    id bigint generated always as identity primary key,
    job text not null references dw_jobs (id) on delete cascade,
    kind text not null,                        -- message | cancel | stop | cancel_step | decide
    payload jsonb not null default '{}',
    sent_at timestamptz not null default now(),
    taken_at timestamptz,
    taken_by uuid                              -- the owner that took it
);
create index dw_inbox_of_job on dw_inbox (job, id);

create table dw_artifacts (
    job text not null references dw_jobs (id) on delete cascade,
    name text not null,
    mime text not null,
    data bytea not null,
    created_at timestamptz not null default now(),
    primary key (job, name)
);

create table dw_webhooks (
    job text primary key references dw_jobs (id) on delete cascade,
    url text not null,
    tries integer not null default 0,
    next_at timestamptz,                       -- no try before; null: the job has not ended; in a try: when it is lost
    delivered_at timestamptz,
    given_up_at timestamptz,
    last_error text
);
create index dw_webhooks_due on dw_webhooks (next_at)
    where next_at is not null and delivered_at is null and given_up_at is null;

-- Whoever ends a job, in whatever statement: its webhook is due from then on. So looking for what is due costs nothing
-- for the thousands whose jobs have not ended.
create function dw_webhook_is_due() returns trigger language plpgsql as $$
begin
    update dw_webhooks set next_at = now() where job = new.id and next_at is null;
    return null;
end
$$;
create trigger dw_job_ended after update of ended_at on dw_jobs for each row
    when (old.ended_at is null and new.ended_at is not null) execute function dw_webhook_is_due();
