-- What the command asks, which sees the jobs of all keys.

-- name: jobs
select id, tenant, kind, status, goal, mode, summary, metadata, parent, batch, created_at, started_at, ended_at, cancel
from dw_jobs
where batch is null and ($1::text is null or status = $1)
order by created_at desc, id desc limit $2

-- name: job
select * from dw_jobs where id = $1
