-- What the owner of a job writes.

-- name: claim
-- The job belongs to this queue manager from now on. No row: there is no such job, or it has ended. Crashes are
-- counted by whoever sees the process end (`jobs.crashed`), as long as nothing new is written.
update dw_jobs
set owner = $2, status = case when status = 'queued' then 'running' else status end,
    started_at = coalesce(started_at, now()),
    crashes = case when claimed_seq = seq then crashes else 0 end,
    claimed_seq = seq, wake_at = null, held = false
where id = $1 and ended_at is null and not (status = 'queued' and batch is not null and exists (
    -- an item of a batch that was over before anybody began it never begins (see batches.get)
    select from dw_batches b where b.id = dw_jobs.batch and least(b.cancelled_at, b.expires_at) <= now()
))
returning *, exists (select from dw_inbox where job = dw_jobs.id) as spoken_to

-- name: append
-- One statement: checks the owner, advances seq, stores the events, wakes the readers where there were any
-- (`events.watch`). No row: ownership is lost.
-- $3 is the seq that the writer believes to be the last one; $4 status and $5 summary are null where nothing changes.
-- $8: none of the events says that the job has come further, so that it is still where it was when it was claimed.
-- $6: the events, each an array; one value is made and read in half the time of five arrays.
with owned as (
    update dw_jobs
    set seq = seq + jsonb_array_length($6::jsonb),
        status = coalesce($4, status),
        summary = coalesce($5, summary),
        ended_at = case when $5::jsonb is null then ended_at else now() end,
        cost_usd = coalesce($7, cost_usd),
        claimed_seq = case when $8 and claimed_seq = seq then seq + jsonb_array_length($6) else claimed_seq end,
        owner = case when $5::jsonb is null then owner end
    where id = $1 and owner = $2 and seq = $3
    returning id, seq, cancel, watched
), written as (
    insert into dw_events (job, seq, ts, channel, step_id, public, payload)
    select owned.id, $3 + place, (event -> 1)::double precision, event ->> 0, event ->> 2, (event -> 3)::boolean,
        event -> 4
    from owned, jsonb_array_elements($6) with ordinality as new (event, place)
)
select owned.seq, owned.cancel,
    exists (select from dw_inbox where job = owned.id and taken_at is null) as letters,
    case when owned.watched then pg_notify('dw_events', owned.id) end
from owned

-- name: take_letters
-- What was said to the job, oldest first, less what stands in its log ($3), whoever took it before: an earlier owner may
-- have died with it. And the cancel flag. No row: ownership is lost.
with owned as (
    select id, cancel from dw_jobs where id = $1 and owner = $2 for share
), taken as (
    update dw_inbox set taken_at = coalesce(taken_at, now()), taken_by = $2
    where job in (select id from owned) and id <> all ($3::bigint[])
    returning id, kind, payload
)
select owned.cancel, taken.id, taken.kind, taken.payload from owned left join taken on true order by taken.id

-- name: spoken_to
-- Of these jobs and their supposed owners those that have letters, are to be cancelled, or belong to another owner.
select j.id
from unnest($1::text[], $2::uuid[]) as mine (id, owner) join dw_jobs j on j.id = mine.id
where j.owner is distinct from mine.owner
   or j.cancel or exists (select from dw_inbox where job = j.id and taken_at is null)

-- name: lock_owned
-- No row: ownership is lost.
select id from dw_jobs where id = $1 and owner = $2 for update

-- name: owner
select owner from dw_jobs where id = $1

-- name: let_go
-- The job belongs to nobody from now on, and goes on elsewhere. $3: all of it waits for a human, and its first wait is
-- over in $4 seconds (null: never); then it is parked, that is, not queued before something is said, unless that has
-- happened already: $5 are the letters that stand in its log.
update dw_jobs j
set owner = null,
    status = case when alone.waits and not cancel then 'needs_decision' else status end,
    wake_at = case when alone.waits and not cancel then now() + make_interval(secs => $4) end
from (
    select $3 and not exists (select from dw_inbox where job = $1 and id <> all ($5::bigint[])) as waits
) alone
where j.id = $1 and j.owner = $2
returning alone.waits and not j.cancel as parked

-- name: put_artifact
-- Keeps an artifact under its name, which the owner knows to be free: one that is there is this very one, put before
-- an answer was lost, or by an earlier owner in a call that is made again. No row: ownership is lost.
with owned as (
    select id from dw_jobs where id = $1 and owner = $2 for share
), kept as (
    insert into dw_artifacts (job, name, mime, data) select id, $3, $4, $5 from owned
    on conflict (job, name) do update set mime = excluded.mime, data = excluded.data
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
