-- Batches: one job an item. An item whose line is no good is a failed job that was never queued.
-- An item that a batch's end cancelled is expired if the batch was not cancelled before.

-- name: create
-- No row: the idempotency key is taken.
insert into dw_batches (id, tenant, mode, expires_at, idempotency_key, request_hash, metadata)
values ($1, $2, $3, now() + make_interval(secs => $4), $5, $6, $7)
on conflict (tenant, idempotency_key) do nothing
returning id

-- name: by_idempotency_key
select id, request_hash from dw_batches where tenant = $1 and idempotency_key = $2

-- name: add_items
-- $11: they are held back for the sake of their key's limit.
insert into dw_jobs (tenant, kind, batch, id, line, custom_id, goal, mode, request, metadata, held)
select $1, $2, $3, id, line, custom_id, goal, mode, request, metadata, $11
from unnest($4::text[], $5::integer[], $6::text[], $7::text[], $8::text[], $9::jsonb[], $10::jsonb[])
    as new (id, line, custom_id, goal, mode, request, metadata)

-- name: add_bad_items
-- $8: the jobs as they ended; $9: their last events.
with added as (
    insert into dw_jobs (tenant, kind, batch, mode, status, request, seq, ended_at, id, line, custom_id, goal, summary)
    select $1, $2, $3, 'auto', 'failed', '{}', 1, now(), id, line, custom_id, goal, summary
    from unnest($4::text[], $5::integer[], $6::text[], $7::text[], $8::jsonb[])
        as new (id, line, custom_id, goal, summary)
    returning id
)
insert into dw_events (job, seq, ts, channel, public, payload)
select id, 1, extract(epoch from now()), 'done', true, payload
from unnest($4::text[], $9::jsonb[]) as told (id, payload) where id in (select id from added)

-- name: release
-- Of the items that are held back as many as their keys' limits have room for, oldest first, which are to be queued: of
-- the tenants of these jobs ($1), of these tenants ($2), of all where neither is given. $3: so many are open at once
-- where a key has no limit of that; none begins where what was spent within $4 seconds has come to the key's limit.
-- Jobs that wait for a human take no room. Two at once see different moments but the same order, and each item goes
-- once: no room is given twice. Cells of experiments are begun by `experiments.begin`.
with room as (
    select k.id as tenant, case
        when k.limits ? 'usd_per_day' and (
            select coalesce(sum(cost_usd), 0) from dw_jobs
            where tenant = k.id and cost_usd is not null and ended_at > now() - make_interval(secs => $4)
        ) >= (k.limits ->> 'usd_per_day')::numeric then 0
        else coalesce((k.limits ->> 'running_jobs')::integer, $3) - (
            select count(*) from dw_jobs
            where tenant = k.id and not held and ended_at is null and status <> 'needs_decision'
        )
    end as items
    from dw_keys k
    where exists (select from dw_jobs where tenant = k.id and held and ended_at is null and cell is null) and (
        k.id = any ($2::text[])
        or k.id in (select tenant from dw_jobs where id = any ($1::text[]))
        or $1::text[] is null and $2::text[] is null
    )
), next as (
    select found.id
    from room, lateral (
        select id from dw_jobs where tenant = room.tenant and held and ended_at is null and cell is null
        order by created_at, line limit greatest(room.items, 0)
    ) found
)
update dw_jobs set held = false from next where dw_jobs.id = next.id and dw_jobs.held returning dw_jobs.id

-- name: set_total
update dw_batches set total = $2 where id = $1

-- name: get
-- The batch with its counts as of now: all of one moment. Once it has ended they are kept in its row. What had not
-- begun when it was cancelled or its time was over counts as ended from then on, whether that is written yet or not:
-- it can't be claimed any more.
select b.*, live.processing, live.succeeded, live.errored, live.canceled, live.expired, live.last_end
from dw_batches b
left join lateral (
    select
        count(*) filter (where ended is null) as processing,
        count(*) filter (where status = 'completed') as succeeded,
        count(*) filter (where ended is not null and status not in ('completed', 'cancelled')) as errored,
        count(*) filter (where status = 'cancelled' and not late) as canceled,
        count(*) filter (where status = 'cancelled' and late) as expired,
        max(ended) as last_end
    from (
        select status, ended,
            ended >= b.expires_at and coalesce(b.cancelled_at >= b.expires_at, true) as late
        from (
            select
                case when never then 'cancelled' else status end as status,
                case when never then least(b.cancelled_at, b.expires_at) else ended_at end as ended
            from (
                select status, ended_at,
                    status = 'queued' and least(b.cancelled_at, b.expires_at) <= now() as never
                from dw_jobs where batch = b.id
            ) stored
        ) told
    ) items
) live on b.ended_at is null
where b.id = $1 and b.tenant = $2

-- name: page
-- Newest first, those after the batch $2, without experiments. One more than a page: has_more.
select id from dw_batches
where tenant = $1 and mode <> 'experiment'
  and ($2::text is null or (created_at, id) < (select created_at, id from dw_batches where id = $2 and tenant = $1))
order by created_at desc, id desc limit $3

-- name: results
-- The lines after the line $2 of items that have ended, each as the text it goes out as: at most $3, and after the
-- first one no more than $4 bytes as they are stored.
select line, text from (
    select page.line, sum(page.size) over (order by page.line) as size, row_number() over (order by page.line) as place,
        json_build_object(
            'custom_id', page.custom_id,
            'status', page.status,
            'plan', case when page.kind = 'plan' and page.status = 'succeeded' then page.summary -> 'plan' end,
            'job', case when page.kind = 'run' then page.summary end,
            'error', case when page.status <> 'succeeded' then json_build_object(
                'code', coalesce(page.summary ->> 'error_code', page.status),
                'detail', coalesce(page.summary ->> 'error', page.summary ->> 'answer', page.status)) end,
            'usage', page.summary -> 'usage',
            'line', page.line,
            'job_id', page.id
        )::text as text
    from (
        select j.line, j.custom_id, j.id, j.kind, j.summary, pg_column_size(j.summary) as size,
            case
                when j.status = 'completed' then 'succeeded'
                when j.status <> 'cancelled' then 'errored'
                when j.ended_at >= b.expires_at and coalesce(b.cancelled_at >= b.expires_at, true) then 'expired'
                else 'canceled'
            end as status
        from dw_jobs j join dw_batches b on b.id = j.batch
        where j.batch = $1 and j.line > $2 and j.ended_at is not null
        order by j.line limit $3
    ) page
) lines
where place = 1 or size <= $4
order by line

-- name: cancel
-- No row: there is no such batch. One none of whose items is open any more has ended, whether that is written yet or not.
update dw_batches b
set cancelled_at = case when items.open then coalesce(cancelled_at, now()) else cancelled_at end
from (
    select exists (
        select from dw_jobs where batch = $1 and status in ('queued', 'running', 'needs_decision')
    ) as open
) items
where b.id = $1 and b.tenant = $2
returning b.id, b.mode, items.open, false as spent

-- name: end_queued
-- Ends items that nobody has begun, $4 at most: $2 is the ended job but for what is its own, $3 its last event. One
-- that is being claimed at this moment is left to `ask_the_rest`.
with found as (
    select j.id, coalesce(least(b.cancelled_at, b.expires_at), now()) as ended
    from dw_jobs j join dw_batches b on b.id = j.batch
    where j.batch = $1 and j.status = 'queued' and j.owner is null and j.started_at is null and j.ended_at is null
      and j.seq = 0
    limit $4 for update of j skip locked
), ended as (
    update dw_jobs j
    set status = 'cancelled', cancel = true, seq = 1, ended_at = found.ended,
        summary = $2::jsonb || jsonb_build_object(
            'id', j.id, 'goal', goal, 'mode', mode, 'metadata', metadata,
            'created_at', to_char(created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
            'ended_at', to_char(found.ended at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
    from found where j.id = found.id
    returning j.id
), told as (
    insert into dw_events (job, seq, ts, channel, public, payload)
    select id, 1, extract(epoch from now()), 'done', true, $3::jsonb from ended
), unqueued as (
    delete from pgqueuer where id in (
        select q.id from pgqueuer q join ended on q.dedupe_key = ended.id
        where q.status = 'queued' for update of q skip locked
    )
)
select count(*) as ended, count(pg_notify('dw_events', id)) from ended

-- name: ask_the_rest
-- Asks the items that have begun to end; their ids, and whether anybody runs them.
update dw_jobs set cancel = true
where batch = $1 and ended_at is null and not cancel
returning id, owner is not null as owned, pg_notify('dw_inbox', id)

-- name: due
-- Whether a batch that was cancelled or is past its time has items that nobody has begun; and if it was cancelled
-- before.
select mode, coalesce(cancelled_at < expires_at, false) as cancelled,
    exists (select from dw_experiments where id = b.id and spent_at is not null) as spent
from dw_batches b
where id = $1 and ended_at is null and least(cancelled_at, expires_at) <= now()
  and exists (select from dw_jobs where batch = b.id and status = 'queued')

-- name: next_due
-- Seconds until the next batch's time is over; null: no batch is open.
select extract(epoch from min(expires_at) - now())::double precision as seconds
from dw_batches where ended_at is null and expires_at > now()

-- name: unfinished
-- A batch that was cancelled or is past its time and has items that nobody asked to end.
select id, mode, coalesce(cancelled_at < expires_at, false) as cancelled,
    exists (select from dw_experiments where id = b.id and spent_at is not null) as spent
from dw_batches b
where ended_at is null and (expires_at <= now() or cancelled_at is not null) and id > $1 and exists (
    select from dw_jobs where batch = b.id and status in ('queued', 'running', 'needs_decision') and not cancel
)
order by id limit 1

-- name: close
-- Batches none of whose items is open any more get their end and their counts for good.
update dw_batches b
set ended_at = coalesce(items.last_end, b.created_at),
    counts = jsonb_build_object('succeeded', items.succeeded, 'errored', items.errored,
        'canceled', items.canceled, 'expired', items.expired)
from dw_batches o, lateral (
    select
        count(*) filter (where status = 'completed') as succeeded,
        count(*) filter (where status not in ('completed', 'cancelled')) as errored,
        count(*) filter (where status = 'cancelled' and not late) as canceled,
        count(*) filter (where status = 'cancelled' and late) as expired,
        max(ended_at) as last_end
    from (
        select status, ended_at,
            ended_at >= o.expires_at and coalesce(o.cancelled_at >= o.expires_at, true) as late
        from dw_jobs where batch = o.id
    ) items
) items
where b.id = o.id and o.ended_at is null and not exists (
    select from dw_jobs where batch = o.id and status in ('queued', 'running', 'needs_decision')
)
returning b.id
