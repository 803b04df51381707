-- What the database knows of the whole service, by indexes only.

-- name: open_jobs
select status, count(*) as jobs from dw_jobs where ended_at is null group by status

-- name: ended_jobs
-- Of the last so many seconds.
select status, count(*) as jobs, coalesce(sum(cost_usd), 0)::double precision as usd from dw_jobs
where ended_at > now() - make_interval(secs => $1) group by status

-- name: queue
select
    count(*) filter (where status = 'queued') as queued,
    count(*) filter (where status = 'picked') as picked,
    coalesce(extract(epoch from now() - min(created) filter (where status = 'queued' and execute_after <= now())), 0)
        ::double precision as oldest
from pgqueuer

-- name: webhooks
select count(*) as waiting from dw_webhooks
where next_at is not null and delivered_at is null and given_up_at is null
