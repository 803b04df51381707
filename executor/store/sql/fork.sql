-- What a new job takes over from the one that it is made from.

-- name: told
-- What was said meanwhile and heard, what the router found, and the artifacts of steps: the job's summary has none of
-- it by itself.
select channel, step_id, payload from dw_events
where job = $1
  and (
    channel = 'inject'
    or (channel = 'route' and payload ? 'mode')
    or (channel = 'step' and step_id is not null and payload ? 'artifact')
  )
order by seq

-- name: share_artifacts
-- A job's artifacts of these names are another one's, too: copied, since either may be deleted.
insert into dw_artifacts (job, name, mime, data, created_at)
select $1, name, mime, data, created_at from dw_artifacts where job = $2 and name = any ($3::text[])
