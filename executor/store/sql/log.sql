-- What the owner of a job writes.

-- name: claim
-- The job belongs to this queue manager from now on. No row: there is no such job, or it has ended.
update dw_jobs
set owner = $2, status = case when status = 'queued' then 'running' else status end,
    started_at = coalesce(started_at, now()),
    crashes = case when started_at is null then 0 when claimed_seq = seq then crashes + 1 else 0 end,
    claimed_seq = seq
where id = $1 and ended_at is null
returning *

-- name: append
-- One statement: checks the owner, advances seq, stores the events, wakes the readers. No row: ownership is lost.
-- $3 is the seq that the writer believes to be the last one; $4 status and $5 summary are null where nothing changes.
with owned as (
    update dw_jobs
    set seq = seq + cardinality($6::text[]),
        status = coalesce($4, status),
        summary = coalesce($5, summary),
        ended_at = case when $5::jsonb is null then ended_at else now() end,
        cost_usd = coalesce($11, cost_usd),
        owner = case when $5::jsonb is null then owner end
    where id = $1 and owner = $2 and seq = $3
    returning id, seq, cancel
), written as (
    insert into dw_events (job, seq, ts, channel, step_id, public, payload)
    select owned.id, $3 + place, ts, channel, step_id, public, payload
    from owned, unnest($6::text[], $7::double precision[], $8::text[], $9::boolean[], $10::jsonb[])
        with ordinality as new (channel, ts, step_id, public, payload, place)
)
select owned.seq, owned.cancel,
    exists (select from dw_inbox where job = owned.id and taken_at is null) as letters,
    pg_notify('dw_events', owned.id)
from owned

-- name: take_letters
-- What was said to the job since, oldest first, and the cancel flag. No row: ownership is lost. A letter is taken
-- once; one whose taking was not heard of comes again unless it is among $3, those that were.
with owned as (
    select id, cancel from dw_jobs where id = $1 and owner = $2 for share
), taken as (
    update dw_inbox set taken_at = coalesce(taken_at, now()), taken_by = $2
    where job in (select id from owned) and (taken_at is null or taken_by = $2 and id <> all ($3::bigint[]))
    returning id, kind, payload
)
select owned.cancel, taken.id, taken.kind, taken.payload from owned left join taken on true order by taken.id

-- name: spoken_to
-- Of these jobs those that have letters or are to be cancelled.
select id from dw_jobs
where id = any ($1::text[])
  and (cancel or exists (select from dw_inbox where job = dw_jobs.id and taken_at is null))

-- name: put_artifact
-- Keeps an artifact under its name, which the owner knows to be free: one that is there is this very one, put before
-- an answer was lost. No row: ownership is lost.
with owned as (
    select id from dw_jobs where id = $1 and owner = $2 for share
), kept as (
    insert into dw_artifacts (job, name, mime, data) select id, $3, $4, $5 from owned on conflict do nothing
)
select id from owned

-- name: artifact_names
select name from dw_artifacts where job = $1 order by created_at, name

-- name: artifact
select mime, data from dw_artifacts where job = $1 and name = $2

-- name: read_events
-- The events after a seq, oldest first; $3: also those that readers don't get; $4: so many at most.
select seq, ts, channel, step_id, payload from dw_events
where job = $1 and seq > $2 and (public or $3)
order by seq limit $4

-- name: where_it_stands
-- For readers: whether more events can come.
select seq, status, ended_at is not null as ended from dw_jobs where id = $1
