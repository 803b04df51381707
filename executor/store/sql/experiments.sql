-- Experiments: batches whose items are cells. What is not here is done by the statements of batches.

-- name: create
insert into dw_experiments (id, name, asked, shown, cells, concurrency, budget_usd, budget_tokens)
values ($1, $2, $3, $4, $5, $6, $7, $8)

-- name: add_cells
-- All are held back: `feed` begins them.
insert into dw_jobs (tenant, kind, batch, id, line, custom_id, goal, mode, request, metadata, cell, held)
select $1, 'run', $2, id, line, null, goal, mode, request, metadata, cell, true
from unnest($3::text[], $4::integer[], $5::text[], $6::text[], $7::jsonb[], $8::jsonb[], $9::jsonb[])
    as new (id, line, goal, mode, request, metadata, cell)

-- name: get
-- What an experiment has beside its batch. The cost of a cell that began and whose cost is not known makes the sum
-- partial; what has not ended has cost something, too, but how much is known at its end.
select e.id, e.name, e.shown, e.cells, e.concurrency, e.budget_usd, e.budget_tokens, e.spent_at, e.report_problem,
    e.report ->> 'conclusion' as conclusion, e.report is not null as reported, b.tenant, b.created_at, sums.*
from dw_experiments e join dw_batches b on b.id = e.id, lateral (
    select
        coalesce(sum(cost_usd), 0) as usd,
        coalesce(bool_or(partial) filter (where started_at is not null), false) as partial,
        count(*) filter (where ended_at is null and owner is not null) as running,
        count(*) filter (where ended_at is not null and started_at is not null) as done
    from dw_jobs where batch = e.id
) sums
where e.id = $1 and b.tenant = $2

-- name: asked
select asked from dw_experiments where id = $1

-- name: report
select report from dw_experiments where id = $1

-- name: page
-- Newest first, those after the experiment $2. One more than a page: has_more.
select id from dw_batches
where tenant = $1 and mode = 'experiment'
  and ($2::text is null or (created_at, id) < (select created_at, id from dw_batches where id = $2 and tenant = $1))
order by created_at desc, id desc limit $3

-- name: cells
-- The cells after the line $2 that are jobs, in their order.
select j.line, j.id, j.cell, j.status, j.cost_usd, j.started_at, j.ended_at, j.summary -> 'elapsed' as elapsed,
    j.summary ->> 'error_code' as error_code
from dw_jobs j where batch = $1 and line > $2 order by line limit $3

-- name: hungry
-- Open experiments that have room for another cell which has not begun: of the tenants of these jobs ($1), of these
-- tenants ($2), of all where neither is given. A cell that waits for a human takes no room.
select e.id
from dw_batches b join dw_experiments e on e.id = b.id
where b.ended_at is null and b.cancelled_at is null and b.expires_at > now()
  and (b.tenant = any ($2::text[])
       or b.tenant in (select tenant from dw_jobs where id = any ($1::text[]))
       or $1::text[] is null and $2::text[] is null)
  and exists (select from dw_jobs where batch = b.id and held and ended_at is null and cell is not null)
  and e.concurrency > (
      select count(*) from dw_jobs
      where batch = b.id and not held and ended_at is null and cell is not null and status <> 'needs_decision'
  )
order by e.id

-- name: lock
-- The experiment, locked: one at a time begins its cells.
select id, concurrency, budget_usd, budget_tokens, spent_at from dw_experiments where id = $1 for update

-- name: at_work
-- What is at work of an experiment, and what of its budget is kept for that. `places`: how many more its key lets begin,
-- null where nothing bounds it; $2 and $3 as in batches.release.
select
    count(*) filter (where status <> 'needs_decision') as working,
    count(*) as open,
    coalesce(sum(reserved_usd), 0) as kept_usd,
    coalesce(sum(reserved_tokens), 0)::bigint as kept_tokens,
    (
        select case
            when k.limits ? 'usd_per_day' and (
                select coalesce(sum(cost_usd), 0) from dw_jobs
                where tenant = k.id and cost_usd is not null and ended_at > now() - make_interval(secs => $3)
            ) >= (k.limits ->> 'usd_per_day')::numeric then 0
            when k.limits ? 'usd_per_day' or k.limits ? 'running_jobs' then
                coalesce((k.limits ->> 'running_jobs')::integer, $2) - (
                    select count(*) from dw_jobs
                    where tenant = k.id and not held and ended_at is null and status <> 'needs_decision'
                )
        end from dw_keys k where k.id = (select tenant from dw_batches where id = $1)
    ) as places
from dw_jobs where batch = $1 and not held and ended_at is null and cell is not null

-- name: spent_so_far
-- What the cells that have ended cost, and what the dearest of them came to. One whose figures are not whole has spent
-- all that was kept for it.
select coalesce(sum(usd), 0) as usd, coalesce(sum(tokens), 0)::bigint as tokens,
    coalesce(max(usd), 0) as dearest_usd, coalesce(max(tokens), 0)::bigint as dearest_tokens
from (
    select case when partial then greatest(cost_usd, reserved_usd) else cost_usd end as usd,
        case when partial then greatest(used_tokens, reserved_tokens) else used_tokens end as tokens
    from dw_jobs where batch = $1 and cell is not null and ended_at is not null and started_at is not null
) ended

-- name: next
-- The cells that are to begin next, as many as $2, with the budgets of their arms.
select id, request ->> 'budget' as budget from dw_jobs
where batch = $1 and held and ended_at is null and cell is not null
order by line limit $2 for update

-- name: begin
-- These cells are held back no more. Where the experiment has a budget each has its part of it; `share` tells that this
-- is less than what the cell's arm allows.
update dw_jobs set held = false, reserved_usd = new.usd, reserved_tokens = new.tokens,
    request = case when new.budget is null then request
        else request || jsonb_build_object('budget', new.budget, 'share', new.share) end
from unnest($1::text[], $2::text[], $3::numeric[], $4::bigint[], $5::boolean[]) as new (id, budget, usd, tokens, share)
where dw_jobs.id = new.id

-- name: spent
-- What is left of the budget is not enough for another cell: the rest never begins.
with spent as (
    update dw_experiments set spent_at = now() where id = $1 and spent_at is null returning id
)
update dw_batches set cancelled_at = coalesce(cancelled_at, now()) where id in (select id from spent)

-- name: not_yet_told
-- Ended cells of which it does not stand yet what came of them; those that were cancelled are left out, and those that
-- only the experiment's budget cut short: they say nothing of their arms.
select j.* from dw_jobs j
where j.batch = $1 and j.ended_at is not null and j.started_at is not null and j.status <> 'cancelled'
  and not (j.status = 'budget_exceeded' and coalesce((j.request ->> 'share')::boolean, false))
  and not exists (select from dw_outcomes where job = j.id)
order by j.line limit $2

-- name: tell
insert into dw_outcomes (job, outcome) select * from unnest($1::text[], $2::jsonb[]) on conflict do nothing

-- name: outcomes
-- What came of the cells after the line $2, in their order.
select j.line, o.outcome from dw_jobs j join dw_outcomes o on o.job = j.id
where j.batch = $1 and j.line > $2 order by j.line limit $3

-- name: unreported
-- An experiment all of whose cells have ended and that has no report yet, nor a reason why not.
select e.id, b.tenant from dw_experiments e join dw_batches b on b.id = e.id
where e.report is null and e.report_problem is null and e.id > $1
  and not exists (select from dw_jobs where batch = e.id and ended_at is null)
order by e.id limit 1

-- name: keep_report
update dw_experiments set report = $2, report_problem = $3
where id = $1 and report is null and report_problem is null

-- name: log_of
-- A cell's events, as much of them as says what it cost, how long it worked and which models were chosen.
select seq, ts, channel, step_id,
    case
        when channel = 'turn' then jsonb_build_object(
            'role', payload -> 'role', 'model', payload -> 'model', 'usage', payload -> 'usage',
            'cached', payload -> 'cached', 'bound', payload -> 'bound', 'bound_behind', payload -> 'bound_behind')
        when channel = 'note' then jsonb_build_object('kind', payload -> 'kind', 'at', payload -> 'at')
        when channel = 'step_progress' then payload - '{result,error}'::text[]
        when channel = 'approval' then payload - '{tool_args,reason}'::text[]
        when channel = 'job_started' or channel like 'rout%' then payload
        else '{}'::jsonb
    end as payload
from dw_events where job = $1 order by seq
