-- Webhooks of jobs. A row whose job has not ended has no `next_at`; one that is being delivered has it in the future,
-- so that another server takes it over if this one dies.

-- name: take
-- Those that are due, for so many seconds ($2) this caller's own. The body is the job as the API shows it.
update dw_webhooks w
set tries = tries + 1, next_at = now() + make_interval(secs => $2)
from (
    select h.job, j.tenant, (
        j.summary || jsonb_build_object('kind', j.kind, 'batch', j.batch, 'cancel_requested', j.cancel)
        || case when j.batch is null then '{}' else jsonb_build_object('custom_id', j.custom_id) end
    )::text as body
    from dw_webhooks h join dw_jobs j on j.id = h.job
    where h.delivered_at is null and h.given_up_at is null and h.next_at <= now() and j.summary is not null
    order by h.next_at limit $1
    for update of h skip locked
) due
where w.job = due.job
returning w.job, w.url, w.tries, due.tenant, due.body

-- name: delivered
update dw_webhooks set delivered_at = now(), last_error = null where job = $1 and delivered_at is null

-- name: failed
-- $4: seconds until the next try, null for none. A try that another one has taken over changes nothing.
update dw_webhooks
set last_error = $3, next_at = now() + make_interval(secs => coalesce($4::double precision, 0)),
    given_up_at = case when $4::double precision is null then now() end
where job = $1 and tries = $2 and delivered_at is null
