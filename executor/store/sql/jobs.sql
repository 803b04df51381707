-- Jobs as their users see them.

-- name: create
-- A job, and its place in the queue, in one transaction with what else it needs. No row: the idempotency key is taken.
insert into dw_jobs (id, tenant, kind, goal, mode, request, metadata, parent, batch, custom_id, line,
                     idempotency_key, request_hash)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
on conflict (tenant, idempotency_key) do nothing
returning *

-- name: by_idempotency_key
select * from dw_jobs where tenant = $1 and idempotency_key = $2

-- name: get
select * from dw_jobs where id = $1 and tenant = $2

-- name: page
-- Newest first, those after the job $2; filtered by status and metadata where given. One more than a page: has_more.
-- What was asked is left out: it may be large. $6: so is what else may be.
select id, tenant, kind, status, case when $6 then left(goal, 2000) else goal end as goal, mode,
    case when $6 then summary - '{plan,steps,answer,fallbacks,goal}'::text[] else summary end as summary,
    metadata, parent, batch, created_at, started_at, ended_at, seq, owner, cancel, cost_usd
from dw_jobs
where tenant = $1 and batch is null
  and ($2::text is null or (created_at, id) < (select created_at, id from dw_jobs where id = $2 and tenant = $1))
  and ($3::text[] is null or status = any ($3))
  and ($4::jsonb[] is null or metadata @> any ($4))
order by created_at desc, id desc limit $5

-- name: put_letter
-- Something said to a job that has not ended. No row: it has, or there is none. The job is locked: its owner lets go
-- of it either before, and then it is `unowned` and must be queued with this letter, or after, and then finds it.
with told as (
    select id, owner is null and (seq > 0 or not request ? 'local') as unowned
    from dw_jobs where id = $1 and tenant = $2 and ended_at is null
    for share
), put as (
    insert into dw_inbox (job, kind, payload) select id, $3, $4 from told returning id
)
select put.id, told.unowned, pg_notify('dw_inbox', told.id) from told, put

-- name: cancel
-- Asks for a job's end; one that nobody has claimed ends here and now (its row comes back with owner null).
update dw_jobs set cancel = true
where id = $1 and tenant = $2 and ended_at is null
returning *, pg_notify('dw_inbox', id)

-- name: lock_unowned
-- The job, locked, if nobody owns it: then the caller may write its end.
select * from dw_jobs where id = $1 and owner is null and ended_at is null for update

-- name: running_of_tenant
select count(*) as running from dw_jobs where tenant = $1 and ended_at is null and batch is null

-- name: spent_of_tenant
-- USD of the jobs that ended within the last so many seconds: what one costs is known at its end.
select coalesce(sum(cost_usd), 0) as usd from dw_jobs
where tenant = $1 and cost_usd is not null and ended_at > now() - make_interval(secs => $2)

-- name: unqueued
-- Jobs that have not ended and have no row in the queue: they are enqueued anew by the reconciliation. One that its
-- own process runs is left to it as long as that lives: it holds the job's advisory lock.
select id, batch is not null as of_batch from dw_jobs j
where ended_at is null and not held
  and (status <> 'needs_decision' or owner is not null or cancel or wake_at <= now() -- an owner without a row is dead
       or exists (select from dw_inbox where job = j.id and taken_at is null))
  and created_at < now() - make_interval(secs => $1)
  and not exists (select from pgqueuer q where q.dedupe_key = j.id and q.status in ('queued', 'picked'))
  and case when request ? 'local' then pg_try_advisory_xact_lock(hashtextextended(id, 0)) else true end

-- name: suspect
-- A job whose owner is gone without a word, or died of it before, and of which nothing was written since it was claimed.
-- No row: it is none, or it has ended.
select id from dw_jobs
where id = $1 and ended_at is null and started_at is not null and claimed_seq = seq
  and (owner is not null or crashes > 0)

-- name: crashed
-- The process $2, which was for this job alone, died of it. No row: it had not claimed it, or it had written something.
update dw_jobs set crashes = crashes + 1, owner = null
where id = $1 and owner = $2 and ended_at is null and claimed_seq = seq
returning crashes

-- name: gone
-- Of these jobs, whose rows in the queue have just gone, those that nobody owns and that have not ended: `ready` are
-- those that can go on, since what they waited for came while the row was still there; the others are due in so many
-- seconds, if ever.
select id, batch is not null as of_batch,
    status <> 'needs_decision' or cancel or coalesce(wake_at <= now(), false)
        or exists (select from dw_inbox where job = j.id and taken_at is null) as ready,
    extract(epoch from wake_at - now())::double precision as seconds
from dw_jobs j
where id = any ($1::text[]) and ended_at is null and owner is null

-- name: next_due
-- Seconds until the first wait for a human is over, of jobs that nobody runs meanwhile; null: there is none.
select extract(epoch from min(wake_at) - now())::double precision as seconds
from dw_jobs where wake_at is not null and ended_at is null

-- name: artifact
select name, mime, data from dw_artifacts
where job = (select id from dw_jobs where id = $1 and tenant = $2) and name = $3

-- name: artifacts
select name, mime, length(data) as size from dw_artifacts
where job = (select id from dw_jobs where id = $1 and tenant = $2) order by created_at, name
