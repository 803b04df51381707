-- What a job's state is made of.

-- name: events
-- The events that say where a job stands, up to a seq; of model calls only who made them and what they cost.
select channel, step_id, ts,
    case channel
        when 'turn' then jsonb_build_object('role', payload->'role', 'model', payload->'model', 'usage', payload->'usage')
        when 'step' then '{}'::jsonb
        else payload
    end as payload
from dw_events
where job = $1 and seq <= $2 and (
    channel in ('plan', 'phase', 'step_progress', 'turn', 'answer', 'approval', 'fallback')
    or (channel = 'route' and payload ? 'mode')
    or (channel = 'step' and step_id is null and payload->>'type' = 'thinking' and payload->>'status' = 'start')
)
order by seq

-- name: approval
-- The last that was said of a call that asked for approval.
select payload->>'status' as status from dw_events
where job = $1 and channel = 'approval' and payload->>'call_id' = $2
order by seq desc limit 1

-- name: plan
-- The plan of the last round.
select payload from dw_events where job = $1 and channel = 'plan' order by seq desc limit 1

-- name: end_unowned
-- The end of a job that nobody owns, whose row the caller has locked: its last event and its summary, in one.
with ended as (
    update dw_jobs
    set seq = seq + 1, status = $2, summary = $3, ended_at = now(), cost_usd = coalesce($4, cost_usd), owner = null
    where id = $1 and owner is null and ended_at is null
    returning *
), written as (
    insert into dw_events (job, seq, ts, channel, step_id, public, payload)
    select id, seq, extract(epoch from ended_at), 'done', null, true, $5 from ended
)
select ended.*, pg_notify('dw_events', id) from ended
